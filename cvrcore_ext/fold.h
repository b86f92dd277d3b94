/* Rank-n update of packed triangles, in register tiles.

   base[i, j, d] += sum_s r[i, s, d] * r[j, s, d] for i >= j, with s in order and no fused
   multiply-add: the same bits as the plain loop. Coordinates come in blocks of LANES, pairs in
   tiles of TILE_CLIENTS x TILE_CLIENTS clients. A tile is contiguous and is prefetched while the
   previous tile is computed. The residuals of one block are first packed, REGISTER_TILE clients
   side by side, so that a register tile reads two contiguous ranges and keeps its sums in
   registers over all s. Tiles on the diagonal are symmetric and stored whole. */

#ifndef CVRCORE_FOLD_H
#define CVRCORE_FOLD_H

#include <stddef.h>

#include "registers.h"

/* As in cvrcore/kernels/packed.py: a cache line, and a multiple of REGISTER_TILE. */
#define LANES 8
#define TILE_CLIENTS 12
#define TILE_ENTRIES (TILE_CLIENTS * TILE_CLIENTS * LANES)

#define WIDTH (REGISTER / 8)
#define REGISTER_TILE 3

typedef double lanes __attribute__((vector_size(REGISTER)));
typedef float half_f32 __attribute__((vector_size(REGISTER / 2), aligned(4), may_alias));

/* `base` holds the tiles of one block, of which rows `low` to `high` - 1 are updated; `packed`
   holds the residuals of one block as double:
   (n_clients / REGISTER_TILE, LANES / WIDTH, n_stored, REGISTER_TILE, WIDTH). */
#define DEFINE_FOLD(NAME, REAL, VECTOR)                                                            \
    static inline void NAME##_tile(REAL *out, const double *left, const double *right,             \
                                   ptrdiff_t n_stored) {                                           \
        lanes sums[REGISTER_TILE][REGISTER_TILE], a[REGISTER_TILE], b[REGISTER_TILE];              \
        for (int r = 0; r < REGISTER_TILE; r++)                                                    \
            for (int c = 0; c < REGISTER_TILE; c++)                                                \
                sums[r][c] = __builtin_convertvector(                                              \
                    *(const VECTOR *)(out + (r * TILE_CLIENTS + c) * LANES), lanes);               \
        for (ptrdiff_t s = 0; s < n_stored; s++) {                                                 \
            for (int r = 0; r < REGISTER_TILE; r++)                                                \
                a[r] = *(const many_f64 *)(left + (s * REGISTER_TILE + r) * WIDTH);                \
            for (int c = 0; c < REGISTER_TILE; c++)                                                \
                b[c] = *(const many_f64 *)(right + (s * REGISTER_TILE + c) * WIDTH);               \
            for (int r = 0; r < REGISTER_TILE; r++)                                                \
                for (int c = 0; c < REGISTER_TILE; c++)                                            \
                    sums[r][c] += a[r] * b[c];                                                     \
        }                                                                                          \
        for (int r = 0; r < REGISTER_TILE; r++)                                                    \
            for (int c = 0; c < REGISTER_TILE; c++)                                                \
                *(VECTOR *)(out + (r * TILE_CLIENTS + c) * LANES) =                                \
                    __builtin_convertvector(sums[r][c], VECTOR);                                   \
    }                                                                                              \
    static void NAME(REAL *base, const double *packed, ptrdiff_t low, ptrdiff_t high,              \
                     ptrdiff_t n_stored) {                                                         \
        const ptrdiff_t run = n_stored * LANES, depth = n_stored * REGISTER_TILE;                  \
        enum { AHEAD = REGISTER_TILE * REGISTER_TILE * LANES, LINE = 64 / sizeof(REAL) };          \
        base += low * (low + 1) / 2 * TILE_ENTRIES;                                                \
        for (ptrdiff_t i0 = low; i0 < high; i0++)                                                  \
            for (ptrdiff_t j0 = 0; j0 <= i0; j0++, base += TILE_ENTRIES) {                         \
                const REAL *next = base + TILE_ENTRIES;                                            \
                for (int j = 0; j < TILE_CLIENTS; j += REGISTER_TILE)                              \
                    for (int i = 0; i < TILE_CLIENTS; i += REGISTER_TILE, next += AHEAD) {         \
                        for (int line = 0; line < AHEAD; line += LINE)                             \
                            __builtin_prefetch(next + line, 1);                                    \
                        for (int part = 0; part < LANES; part += WIDTH)                            \
                            NAME##_tile(base + (i * TILE_CLIENTS + j) * LANES + part,              \
                                        packed + (i0 * TILE_CLIENTS + i) * run + part * depth,     \
                                        packed + (j0 * TILE_CLIENTS + j) * run + part * depth,     \
                                        n_stored);                                                 \
                    }                                                                              \
            }                                                                                      \
    }

DEFINE_FOLD(fold_f64, double, many_f64)
DEFINE_FOLD(fold_f32, float, half_f32)

#endif
