/* Rank-n update of packed triangles, in register tiles.

   base[i, j, d] += sum_s history[i, s, d] * history[j, s, d] for i >= j, with s in order and no
   fused multiply-add: the bits of the plain loop. Coordinates come in blocks of LANES; the
   history of one block is first copied together, a register's width after the other, so that
   a tile of TILE x TILE pairs reads it in one run and keeps its sums in registers over all s. A
   tile on the diagonal works out more than it stores: what lies above belongs to other pairs. */

#ifndef CVRCORE_FOLD_H
#define CVRCORE_FOLD_H

#include <stddef.h>

#define LANES 16 /* coordinates in a block, as in cvrcore/_covariance.py: two lines of cache */
#define PANEL 192 /* clients whose history stays in cache; a multiple of every TILE */

/* As wide as the build's registers: wider vectors would be split through memory. */
#if defined(__AVX512F__)
#define WIDTH 8
#define TILE 4
#elif defined(__AVX__)
#define WIDTH 4
#define TILE 3
#else
#define WIDTH 2
#define TILE 3
#endif

typedef double lanes __attribute__((vector_size(8 * WIDTH)));
typedef double lanes_f64 __attribute__((vector_size(8 * WIDTH), aligned(8), may_alias));
typedef float lanes_f32 __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

/* `base` holds one block's pairs, LANES each; `packed` one block's history as double,
   (n_clients, LANES / WIDTH, n_stored, WIDTH). */
#define DEFINE_FOLD(NAME, REAL, VECTOR)                                                           \
    static inline void NAME##_tile(REAL *const out[], const double *left, const double *right,    \
                                   ptrdiff_t n_stored, int part, int diagonal) {                  \
        lanes sums[TILE][TILE], a[TILE], b[TILE];                                                 \
        for (int r = 0; r < TILE; r++)                                                            \
            for (int c = 0; c < TILE; c++)                                                        \
                sums[r][c] = __builtin_convertvector(                                             \
                    *(const VECTOR *)(out[r] + c * LANES + part), lanes);                         \
        for (ptrdiff_t s = 0; s < n_stored; s++) {                                                \
            for (int r = 0; r < TILE; r++)                                                        \
                a[r] = *(const lanes_f64 *)(left + (r * LANES + part) * n_stored + s * WIDTH);    \
            for (int c = 0; c < TILE; c++)                                                        \
                b[c] = *(const lanes_f64 *)(right + (c * LANES + part) * n_stored + s * WIDTH);   \
            for (int r = 0; r < TILE; r++)                                                        \
                for (int c = 0; c < TILE; c++)                                                    \
                    sums[r][c] += a[r] * b[c];                                                    \
        }                                                                                         \
        for (int r = 0; r < TILE; r++)                                                            \
            for (int c = 0; c < (diagonal ? r + 1 : TILE); c++)                                   \
                *(VECTOR *)(out[r] + c * LANES + part) =                                          \
                    __builtin_convertvector(sums[r][c], VECTOR);                                  \
    }                                                                                             \
    static inline void NAME##_pair(REAL *out, const double *a, const double *b,                   \
                                   ptrdiff_t n_stored) {                                          \
        for (int part = 0; part < LANES; part += WIDTH) {                                         \
            VECTOR *const place = (VECTOR *)(out + part);                                         \
            lanes total = __builtin_convertvector(*place, lanes);                                 \
            for (ptrdiff_t s = 0; s < n_stored; s++)                                              \
                total += *(const lanes_f64 *)(a + part * n_stored + s * WIDTH) *                  \
                         *(const lanes_f64 *)(b + part * n_stored + s * WIDTH);                   \
            *place = __builtin_convertvector(total, VECTOR);                                      \
        }                                                                                         \
    }                                                                                             \
    static void NAME(REAL *base, const double *packed, ptrdiff_t n_clients,                       \
                     ptrdiff_t n_stored) {                                                        \
        const ptrdiff_t run = n_stored * LANES;                                                   \
        for (ptrdiff_t low = 0; low < n_clients; low += PANEL)                                    \
            for (ptrdiff_t i0 = low; i0 < n_clients; i0 += TILE) {                                \
                const ptrdiff_t high = low + PANEL;                                               \
                const ptrdiff_t rows = n_clients - i0 < TILE ? n_clients - i0 : TILE;             \
                const ptrdiff_t tiles = rows < TILE ? low : i0 < high ? i0 + TILE : high;         \
                for (ptrdiff_t j0 = low; j0 < tiles; j0 += TILE) {                                \
                    REAL *out[TILE];                                                              \
                    for (int r = 0; r < TILE; r++)                                                \
                        out[r] = base + ((i0 + r) * (i0 + r + 1) / 2 + j0) * LANES;               \
                    for (int part = 0; part < LANES; part += WIDTH)                               \
                        if (j0 < i0)                                                              \
                            NAME##_tile(out, packed + i0 * run, packed + j0 * run, n_stored,      \
                                        part, 0);                                                 \
                        else                                                                      \
                            NAME##_tile(out, packed + i0 * run, packed + j0 * run, n_stored,      \
                                        part, 1);                                                 \
                }                                                                                 \
                for (ptrdiff_t i = i0; i < i0 + rows; i++) /* what the tiles leave */             \
                    for (ptrdiff_t j = tiles; j <= i && j < high; j++)                            \
                        NAME##_pair(base + (i * (i + 1) / 2 + j) * LANES, packed + i * run,       \
                                    packed + j * run, n_stored);                                  \
            }                                                                                     \
    }

DEFINE_FOLD(fold_f64, double, lanes_f64)
DEFINE_FOLD(fold_f32, float, lanes_f32)

#endif
