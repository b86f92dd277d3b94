/* product = matrix @ block for few clients, in register tiles.

   Each sum runs over clients in order, with no fused multiply-add: the bits of the plain loop.
   A tile of TALL rows by SPAN columns keeps its sums in registers over all clients. */

#ifndef CVRCORE_MULTIPLY_H
#define CVRCORE_MULTIPLY_H

#include <stddef.h>

#define TALL 4
#define SPAN 16
#if defined(__AVX512F__)
#define FLOATS 16
#elif defined(__AVX__)
#define FLOATS 8
#else
#define FLOATS 4
#endif

typedef float run __attribute__((vector_size(4 * FLOATS), aligned(4), may_alias));

static inline void multiply_tile(const float *matrix, const float *block, ptrdiff_t n_clients,
                                 ptrdiff_t n_vectors, float *product) {
    run sums[TALL][SPAN / FLOATS] = {{{0}}};
    for (ptrdiff_t k = 0; k < n_clients; k++)
        for (int p = 0; p < SPAN / FLOATS; p++) {
            const run column = *(const run *)(block + k * n_vectors + p * FLOATS);
            for (int r = 0; r < TALL; r++)
                sums[r][p] += matrix[r * n_clients + k] * column;
        }
    for (int r = 0; r < TALL; r++)
        for (int p = 0; p < SPAN / FLOATS; p++)
            *(run *)(product + r * n_vectors + p * FLOATS) = sums[r][p];
}

static void multiply_rows(const float *matrix, const float *block, ptrdiff_t n_clients,
                          ptrdiff_t n_vectors, float *product) {
    const ptrdiff_t tall = n_clients / TALL * TALL, wide = n_vectors / SPAN * SPAN;
    for (ptrdiff_t i = 0; i < tall; i += TALL)
        for (ptrdiff_t c = 0; c < wide; c += SPAN)
            multiply_tile(matrix + i * n_clients, block + c, n_clients, n_vectors,
                          product + i * n_vectors + c);
    for (ptrdiff_t i = 0; i < n_clients; i++) { /* what the tiles leave */
        const ptrdiff_t from = i < tall ? wide : 0;
        for (ptrdiff_t c = from; c < n_vectors; c++)
            product[i * n_vectors + c] = 0;
        for (ptrdiff_t k = 0; k < n_clients; k++) {
            const float entry = matrix[i * n_clients + k];
            for (ptrdiff_t c = from; c < n_vectors; c++)
                product[i * n_vectors + c] += entry * block[k * n_vectors + c];
        }
    }
}

#endif
