/* Rank-n update of packed triangles, in register tiles.

   base[i, j, d] += sum_s history[i, s, d] * history[j, s, d] for i >= j, with s in order and no
   fused multiply-add: the bits of the plain loop. A tile of TILE x TILE pairs keeps its sums
   in registers over all s, so that each residual that is loaded serves TILE pairs. */

#ifndef CVRCORE_FOLD_H
#define CVRCORE_FOLD_H

#include <stddef.h>

/* As wide as the build's registers: wider vectors would be split through memory. */
#if defined(__AVX512F__)
#define WIDTH 8
#define TILE 4
#elif defined(__AVX__)
#define WIDTH 4
#define TILE 2
#else
#define WIDTH 2
#define TILE 2
#endif

typedef double lanes __attribute__((vector_size(8 * WIDTH)));
typedef double lanes_f64 __attribute__((vector_size(8 * WIDTH), aligned(8), may_alias));
typedef float lanes_f32 __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

#define DEFINE_FOLD(NAME, REAL, VECTOR)                                                        \
    static void NAME##_pair(REAL *out, const REAL *a, const REAL *b, ptrdiff_t n_features,     \
                            ptrdiff_t n_stored, ptrdiff_t from) {                              \
        for (ptrdiff_t d = from; d < n_features; d++) {                                        \
            double total = out[d];                                                             \
            for (ptrdiff_t s = 0; s < n_stored; s++)                                           \
                total += (double)a[s * n_features + d] * (double)b[s * n_features + d];        \
            out[d] = (REAL)total;                                                              \
        }                                                                                      \
    }                                                                                          \
    static void NAME(REAL *base, const REAL *history, ptrdiff_t stride, ptrdiff_t n_features,     \
                     ptrdiff_t n_stored, ptrdiff_t start, ptrdiff_t stop) {                       \
        const ptrdiff_t whole = n_features / WIDTH * WIDTH;                                       \
        for (ptrdiff_t i0 = start; i0 < stop; i0 += TILE) {                                       \
            const ptrdiff_t rows = stop - i0 < TILE ? stop - i0 : TILE;                           \
            const ptrdiff_t tiles = rows == TILE ? (i0 + 1) / TILE * TILE : 0;                    \
            for (ptrdiff_t j0 = 0; j0 < tiles; j0 += TILE) {                                      \
                REAL *out[TILE][TILE];                                                            \
                for (int r = 0; r < TILE; r++)                                                    \
                    for (int c = 0; c < TILE; c++)                                                \
                        out[r][c] = base + ((i0 + r) * (i0 + r + 1) / 2 + j0 + c) * n_features;   \
                for (ptrdiff_t d = 0; d < whole; d += WIDTH) {                                    \
                    lanes sums[TILE][TILE], a[TILE], b[TILE];                                     \
                    for (int r = 0; r < TILE; r++)                                                \
                        for (int c = 0; c < TILE; c++)                                            \
                            sums[r][c] = __builtin_convertvector(                                 \
                                *(const VECTOR *)(out[r][c] + d), lanes);                         \
                    const REAL *left = history + i0 * stride + d;                                 \
                    const REAL *right = history + j0 * stride + d;                                \
                    for (ptrdiff_t s = 0; s < n_stored; s++) {                                    \
                        for (int r = 0; r < TILE; r++)                                            \
                            a[r] = __builtin_convertvector(                                       \
                                *(const VECTOR *)(left + r * stride), lanes);                     \
                        for (int c = 0; c < TILE; c++)                                            \
                            b[c] = __builtin_convertvector(                                       \
                                *(const VECTOR *)(right + c * stride), lanes);                    \
                        for (int r = 0; r < TILE; r++)                                            \
                            for (int c = 0; c < TILE; c++)                                        \
                                sums[r][c] += a[r] * b[c];                                        \
                        left += n_features;                                                       \
                        right += n_features;                                                      \
                    }                                                                             \
                    for (int r = 0; r < TILE; r++)                                                \
                        for (int c = 0; c < TILE; c++)                                            \
                            *(VECTOR *)(out[r][c] + d) =                                          \
                                __builtin_convertvector(sums[r][c], VECTOR);                      \
                }                                                                                 \
            }                                                                                     \
            for (ptrdiff_t i = i0; i < i0 + rows; i++) /* what the tiles leave */                 \
                for (ptrdiff_t j = 0; j <= i; j++)                                                \
                    NAME##_pair(base + (i * (i + 1) / 2 + j) * n_features,                        \
                                history + i * stride, history + j * stride, n_features,           \
                                n_stored, j < tiles ? whole : 0);                                 \
        }                                                                                         \
    }

DEFINE_FOLD(fold_f64, double, lanes_f64)
DEFINE_FOLD(fold_f32, float, lanes_f32)

#endif
