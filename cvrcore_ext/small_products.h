/* Products of small matrices, in register tiles.

   Each sum runs in order, with no fused multiply-add: the same bits as the plain loop. A tile of TALL
   rows by SPAN columns keeps its sums in registers. */

#ifndef CVRCORE_SMALL_PRODUCTS_H
#define CVRCORE_SMALL_PRODUCTS_H

#include <stddef.h>

#define TALL 4
#define SPAN 16
#if defined(__AVX__)
#define FLOATS 8
#else
#define FLOATS 4
#endif
#define DOUBLES (FLOATS / 2)

typedef float run __attribute__((vector_size(4 * FLOATS), aligned(4), may_alias));
typedef float half_run __attribute__((vector_size(4 * DOUBLES), aligned(4), may_alias));
typedef double wide_run __attribute__((vector_size(8 * DOUBLES), aligned(8), may_alias));

static inline void multiply_tile(const float *left, const float *right, ptrdiff_t n_inner,
                                 ptrdiff_t n_columns, float *product) {
    run sums[TALL][SPAN / FLOATS] = {{{0}}};
    for (ptrdiff_t k = 0; k < n_inner; k++)
        for (int p = 0; p < SPAN / FLOATS; p++) {
            const run column = *(const run *)(right + k * n_columns + p * FLOATS);
            for (int r = 0; r < TALL; r++)
                sums[r][p] += left[r * n_inner + k] * column;
        }
    for (int r = 0; r < TALL; r++)
        for (int p = 0; p < SPAN / FLOATS; p++)
            *(run *)(product + r * n_columns + p * FLOATS) = sums[r][p];
}

/* product = left @ right, of shapes (n_rows, n_inner) and (n_inner, n_columns). */
static void multiply_rows(const float *left, const float *right, ptrdiff_t n_rows,
                          ptrdiff_t n_inner, ptrdiff_t n_columns, float *product) {
    const ptrdiff_t tall = n_rows / TALL * TALL, wide = n_columns / SPAN * SPAN;
    for (ptrdiff_t i = 0; i < tall; i += TALL)
        for (ptrdiff_t c = 0; c < wide; c += SPAN)
            multiply_tile(left + i * n_inner, right + c, n_inner, n_columns,
                          product + i * n_columns + c);
    for (ptrdiff_t i = 0; i < n_rows; i++) { /* remainder */
        const ptrdiff_t from = i < tall ? wide : 0;
        for (ptrdiff_t c = from; c < n_columns; c++)
            product[i * n_columns + c] = 0;
        for (ptrdiff_t k = 0; k < n_inner; k++) {
            const float entry = left[i * n_inner + k];
            for (ptrdiff_t c = from; c < n_columns; c++)
                product[i * n_columns + c] += entry * right[k * n_columns + c];
        }
    }
}

static inline void inner_tile(const float *left, const float *right, ptrdiff_t n_rows,
                              ptrdiff_t n_columns, double *products) {
    wide_run sums[TALL][SPAN / DOUBLES] = {{{0}}};
    for (ptrdiff_t i = 0; i < n_rows; i++)
        for (int p = 0; p < SPAN / DOUBLES; p++) {
            const wide_run row = __builtin_convertvector(
                *(const half_run *)(right + i * n_columns + p * DOUBLES), wide_run);
            for (int a = 0; a < TALL; a++)
                sums[a][p] += (double)left[i * n_columns + a] * row;
        }
    for (int a = 0; a < TALL; a++)
        for (int p = 0; p < SPAN / DOUBLES; p++)
            *(wide_run *)(products + a * n_columns + p * DOUBLES) = sums[a][p];
}

/* products = left^T @ right in double, both of shape (n_rows, n_columns). */
static void inner_products(const float *left, const float *right, ptrdiff_t n_rows,
                           ptrdiff_t n_columns, double *products) {
    const ptrdiff_t tall = n_columns / TALL * TALL, wide = n_columns / SPAN * SPAN;
    for (ptrdiff_t a = 0; a < tall; a += TALL)
        for (ptrdiff_t b = 0; b < wide; b += SPAN)
            inner_tile(left + a, right + b, n_rows, n_columns, products + a * n_columns + b);
    for (ptrdiff_t a = 0; a < n_columns; a++) { /* remainder */
        const ptrdiff_t from = a < tall ? wide : 0;
        for (ptrdiff_t b = from; b < n_columns; b++)
            products[a * n_columns + b] = 0;
        for (ptrdiff_t i = 0; i < n_rows; i++) {
            const double entry = left[i * n_columns + a];
            for (ptrdiff_t b = from; b < n_columns; b++)
                products[a * n_columns + b] += entry * (double)right[i * n_columns + b];
        }
    }
}

#endif
