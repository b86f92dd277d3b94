/* Rank-n update of packed triangles, in register tiles.

   base[i, j, d] += sum_s history[i, s, d] * history[j, s, d] for i >= j, with s in order and no
   fused multiply-add: the bits of the plain loop. Coordinates come in blocks of LANES, pairs in
   squares of EDGE x EDGE clients: one run of memory, fetched while the one before is worked on.
   The history of one block is first copied together, TILE clients beside each other and a
   register's width after the other, so that a tile of TILE x TILE pairs reads two runs, never two
   places as far apart as banks of the cache are, and keeps its sums in registers over all s.
   Squares on the diagonal are symmetric, and kept whole. */

#ifndef CVRCORE_FOLD_H
#define CVRCORE_FOLD_H

#include <stddef.h>

#include "_registers.h"

/* As in cvrcore/_covariance.py: a line of cache, and a multiple of every TILE. */
#define LANES 8
#define EDGE 12
#define SQUARE (EDGE * EDGE * LANES)

#define WIDTH (REGISTER / 8)
#if REGISTER == 64
#define TILE 4
#else
#define TILE 3
#endif

typedef double lanes __attribute__((vector_size(REGISTER)));
typedef float half_f32 __attribute__((vector_size(REGISTER / 2), aligned(4), may_alias));

/* `base` holds one block's squares, of which those in rows `low` to `high` - 1 are worked on;
   `packed` one block's history as double: (n_clients / TILE, LANES / WIDTH, n_stored, TILE, WIDTH). */
#define DEFINE_FOLD(NAME, REAL, VECTOR)                                                           \
    static inline void NAME##_tile(REAL *out, const double *left, const double *right,            \
                                   ptrdiff_t n_stored) {                                          \
        lanes sums[TILE][TILE], a[TILE], b[TILE];                                                 \
        for (int r = 0; r < TILE; r++)                                                            \
            for (int c = 0; c < TILE; c++)                                                        \
                sums[r][c] = __builtin_convertvector(                                             \
                    *(const VECTOR *)(out + (r * EDGE + c) * LANES), lanes);                      \
        for (ptrdiff_t s = 0; s < n_stored; s++) {                                                \
            for (int r = 0; r < TILE; r++)                                                        \
                a[r] = *(const many_f64 *)(left + (s * TILE + r) * WIDTH);                        \
            for (int c = 0; c < TILE; c++)                                                        \
                b[c] = *(const many_f64 *)(right + (s * TILE + c) * WIDTH);                       \
            for (int r = 0; r < TILE; r++)                                                        \
                for (int c = 0; c < TILE; c++)                                                    \
                    sums[r][c] += a[r] * b[c];                                                    \
        }                                                                                         \
        for (int r = 0; r < TILE; r++)                                                            \
            for (int c = 0; c < TILE; c++)                                                        \
                *(VECTOR *)(out + (r * EDGE + c) * LANES) =                                       \
                    __builtin_convertvector(sums[r][c], VECTOR);                                  \
    }                                                                                             \
    static void NAME(REAL *base, const double *packed, ptrdiff_t low, ptrdiff_t high,             \
                     ptrdiff_t n_stored) {                                                        \
        const ptrdiff_t run = n_stored * LANES, depth = n_stored * TILE;                          \
        enum { AHEAD = TILE * TILE * LANES, LINE = 64 / sizeof(REAL) };                           \
        base += low * (low + 1) / 2 * SQUARE;                                                     \
        for (ptrdiff_t i0 = low; i0 < high; i0++)                                                 \
            for (ptrdiff_t j0 = 0; j0 <= i0; j0++, base += SQUARE) {                              \
                const REAL *next = base + SQUARE;                                                 \
                for (int j = 0; j < EDGE; j += TILE)                                              \
                    for (int i = 0; i < EDGE; i += TILE, next += AHEAD) {                         \
                        for (int line = 0; line < AHEAD; line += LINE)                            \
                            __builtin_prefetch(next + line, 1);                                   \
                        for (int part = 0; part < LANES; part += WIDTH)                           \
                            NAME##_tile(base + (i * EDGE + j) * LANES + part,                     \
                                        packed + (i0 * EDGE + i) * run + part * depth,            \
                                        packed + (j0 * EDGE + j) * run + part * depth,            \
                                        n_stored);                                                \
                    }                                                                             \
            }                                                                                     \
    }

DEFINE_FOLD(fold_f64, double, many_f64)
DEFINE_FOLD(fold_f32, float, half_f32)

#endif
