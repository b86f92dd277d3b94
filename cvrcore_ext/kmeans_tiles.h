/* Squared distances between a block of points and all centres, their minima and gains of moves.

   Points are transposed, (n_dims, width), and come in blocks of BLOCK. A tile of CENTRES centres by
   two registers of points keeps its sums in registers. Each sum runs over the dimensions in order,
   with no fused multiply-add: the same bits as the plain loop. */

#ifndef CVRCORE_KMEANS_TILES_H
#define CVRCORE_KMEANS_TILES_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "registers.h"

#define BLOCK 64 /* as in cvrcore/kernels/kmeans.py */
#define CENTRES 4

typedef int64_t bits_f64 __attribute__((vector_size(REGISTER)));
typedef int32_t bits_f32 __attribute__((vector_size(REGISTER)));

#define EITHER(MANY, BITS, mask, yes, no) (MANY)(((mask) & (BITS)(yes)) | (~(mask) & (BITS)(no)))

#define DEFINE_NEAR(SUFFIX, REAL, MANY, BITS)                                                     \
    static inline __attribute__((always_inline)) void tile_##SUFFIX(                              \
        const REAL *points, ptrdiff_t width, ptrdiff_t n_dims, const REAL *centres,               \
        int n_centres, int n_runs, REAL *distances) {                                             \
        enum { WIDE = REGISTER / sizeof(REAL) };                                                  \
        MANY sums[CENTRES][2] = {{{0}}};                                                          \
        for (ptrdiff_t j = 0; j < n_dims; j++)                                                    \
            for (int r = 0; r < n_runs; r++) {                                                    \
                const MANY x = *(const MANY *)(points + j * width + r * WIDE);                    \
                for (int c = 0; c < n_centres; c++) {                                             \
                    const MANY difference = x - centres[c * n_dims + j];                          \
                    sums[c][r] += difference * difference;                                        \
                }                                                                                 \
            }                                                                                     \
        for (int c = 0; c < n_centres; c++)                                                       \
            for (int r = 0; r < n_runs; r++)                                                      \
                *(MANY *)(distances + c * BLOCK + r * WIDE) = sums[c][r];                         \
    }                                                                                             \
    /* distances[c, i] of n_points <= BLOCK points, rows of BLOCK. */                             \
    static void distances_##SUFFIX(const REAL *points, ptrdiff_t width, ptrdiff_t n_dims,         \
                                   const REAL *centres, ptrdiff_t n_centres, ptrdiff_t n_points,  \
                                   REAL *distances) {                                             \
        enum { WIDE = REGISTER / sizeof(REAL) };                                                  \
        ptrdiff_t i = 0;                                                                          \
        for (; i + WIDE <= n_points; i += WIDE) {                                                 \
            const int two = i + 2 * WIDE <= n_points;                                             \
            ptrdiff_t c = 0;                                                                      \
            for (; c + CENTRES <= n_centres; c += CENTRES)                                        \
                if (two)                                                                          \
                    tile_##SUFFIX(points + i, width, n_dims, centres + c * n_dims, CENTRES, 2,    \
                                  distances + c * BLOCK + i);                                     \
                else                                                                              \
                    tile_##SUFFIX(points + i, width, n_dims, centres + c * n_dims, CENTRES, 1,    \
                                  distances + c * BLOCK + i);                                     \
            for (; c < n_centres; c++)                                                            \
                if (two)                                                                          \
                    tile_##SUFFIX(points + i, width, n_dims, centres + c * n_dims, 1, 2,          \
                                  distances + c * BLOCK + i);                                     \
                else                                                                              \
                    tile_##SUFFIX(points + i, width, n_dims, centres + c * n_dims, 1, 1,          \
                                  distances + c * BLOCK + i);                                     \
            i += two ? WIDE : 0;                                                                  \
        }                                                                                         \
        for (; i < n_points; i++) /* remainder */                                                 \
            for (ptrdiff_t c = 0; c < n_centres; c++) {                                           \
                REAL sum = 0;                                                                     \
                for (ptrdiff_t j = 0; j < n_dims; j++) {                                          \
                    const REAL difference = points[j * width + i] - centres[c * n_dims + j];      \
                    sum += difference * difference;                                               \
                }                                                                                 \
                distances[c * BLOCK + i] = sum;                                                   \
            }                                                                                     \
    }                                                                                             \
    /* The least distance of each point, and its centre, for all BLOCK columns. */                \
    static void nearest_##SUFFIX(const REAL *distances, ptrdiff_t n_centres, REAL *best,          \
                                 REAL *choice) {                                                  \
        enum { WIDE = REGISTER / sizeof(REAL) };                                                  \
        for (int i = 0; i < BLOCK; i += WIDE) {                                                   \
            MANY least = INFINITY - (MANY){0}, chosen = {0};                                      \
            for (ptrdiff_t c = 0; c < n_centres; c++) {                                           \
                const MANY here = *(const MANY *)(distances + c * BLOCK + i);                     \
                const BITS nearer = here < least;                                                 \
                chosen = EITHER(MANY, BITS, nearer, (REAL)c - (MANY){0}, chosen);                 \
                least = EITHER(MANY, BITS, nearer, here, least);                                  \
            }                                                                                     \
            *(MANY *)(best + i) = least;                                                          \
            *(MANY *)(choice + i) = chosen;                                                       \
        }                                                                                         \
    }                                                                                             \
    /* For each point: the gain of leaving its centre, and the least cost of joining another. */  \
    static void moves_##SUFFIX(const REAL *distances, ptrdiff_t n_centres, const REAL *labels,    \
                               const REAL *join, const REAL *leave, REAL *best, REAL *own) {      \
        enum { WIDE = REGISTER / sizeof(REAL) };                                                  \
        for (int i = 0; i < BLOCK; i += WIDE) {                                                   \
            const MANY label = *(const MANY *)(labels + i);                                       \
            MANY least = INFINITY - (MANY){0}, saved = {0};                                       \
            for (ptrdiff_t c = 0; c < n_centres; c++) {                                           \
                const MANY here = *(const MANY *)(distances + c * BLOCK + i);                     \
                const MANY cost = join[c] * here;                                                 \
                const BITS mine = label == (REAL)c - (MANY){0}, better = (cost < least) & ~mine;  \
                saved = EITHER(MANY, BITS, mine, leave[c] * here, saved);                         \
                least = EITHER(MANY, BITS, better, cost, least);                                  \
            }                                                                                     \
            *(MANY *)(best + i) = least;                                                          \
            *(MANY *)(own + i) = saved;                                                           \
        }                                                                                         \
    }

DEFINE_NEAR(f64, double, many_f64, bits_f64)
DEFINE_NEAR(f32, float, many_f32, bits_f32)

/* distances[c] of one point, in double. Interleaved sums of several centres hide add latency. */
static void exact_distances(const double *point, const double *centres, ptrdiff_t n_dims,
                            ptrdiff_t n_centres, double *distances) {
    ptrdiff_t c = 0;
    for (; c + CENTRES <= n_centres; c += CENTRES) {
        double sums[CENTRES] = {0};
        for (ptrdiff_t j = 0; j < n_dims; j++)
            for (int k = 0; k < CENTRES; k++) {
                const double difference = point[j] - centres[(c + k) * n_dims + j];
                sums[k] += difference * difference;
            }
        for (int k = 0; k < CENTRES; k++)
            distances[c + k] = sums[k];
    }
    for (; c < n_centres; c++) {
        double sum = 0;
        for (ptrdiff_t j = 0; j < n_dims; j++) {
            const double difference = point[j] - centres[c * n_dims + j];
            sum += difference * difference;
        }
        distances[c] = sum;
    }
}

#endif
