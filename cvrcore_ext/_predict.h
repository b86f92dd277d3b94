/* A client's residual from its entries of C, and its share in sums over clients, in one pass.

   No fused multiply-add, one client after the other: the bits of the plain loop. */

#ifndef CVRCORE_PREDICT_H
#define CVRCORE_PREDICT_H

#include <math.h>
#include <stddef.h>

#include "_fours.h"

/* Entries whose square is beyond the product of their diagonals become its root, with their
   sign: rounding, rates that differ, or a window of clients that are nearly parallel. */
static inline void clip(fours_f64 *entry, const fours_f64 *most, const fours_mask *beyond) {
#if defined(__AVX__)
    const __m256d sign = _mm256_set1_pd(-0.0), root = _mm256_sqrt_pd((__m256d)*most);
    const __m256d signs = _mm256_and_pd(sign, (__m256d)*entry);
    *entry = (fours_f64)_mm256_blendv_pd((__m256d)*entry, _mm256_or_pd(root, signs),
                                         (__m256d)*beyond);
#else
    for (int lane = 0; lane < 4; lane++)
        if ((*beyond)[lane])
            (*entry)[lane] = copysign(sqrt((*most)[lane]), (*entry)[lane]);
#endif
}

/* out = weight * (row - entry * slope), entry = scale * sums, its square at most diagonal * other. */
#define DEFINE_PREDICT(NAME, REAL, VECTOR, UP, DOWN)                                              \
    static void NAME(const REAL *sums, double scale, const REAL *slope, const REAL *other,        \
                     const REAL *row, const REAL *diagonal, double weight, double share,          \
                     ptrdiff_t n_features, REAL *restrict out, double *restrict projection,       \
                     double *restrict squares) {                                                  \
        ptrdiff_t d = 0;                                                                          \
        for (; d + 4 <= n_features; d += 4) {                                                     \
            fours_f64 entry = scale * UP(*(const VECTOR *)(sums + d));                            \
            const fours_f64 most =                                                                \
                UP(*(const VECTOR *)(diagonal + d)) * UP(*(const VECTOR *)(other + d));           \
            const fours_mask beyond = entry * entry > most;                                       \
            if (ANY(beyond))                                                                      \
                clip(&entry, &most, &beyond);                                                     \
            const fours_f64 delta =                                                               \
                UP(*(const VECTOR *)(row + d)) - entry * UP(*(const VECTOR *)(slope + d));        \
            const VECTOR residual = DOWN(weight * delta);                                         \
            const fours_f64 value = UP(residual);                                                 \
            *(VECTOR *)(out + d) = residual;                                                      \
            *(fours_f64 *)(projection + d) += share * value;                                      \
            *(fours_f64 *)(squares + d) += value * value;                                         \
        }                                                                                         \
        for (; d < n_features; d++) { /* what the registers leave */                              \
            const double most = (double)diagonal[d] * (double)other[d];                           \
            double entry = scale * (double)sums[d];                                               \
            if (entry * entry > most)                                                             \
                entry = copysign(sqrt(most), entry);                                              \
            out[d] = (REAL)(weight * ((double)row[d] - entry * (double)slope[d]));                \
            const double value = out[d];                                                          \
            projection[d] += share * value;                                                       \
            squares[d] += value * value;                                                          \
        }                                                                                         \
    }

DEFINE_PREDICT(predict_f64, double, fours_f64, SAME, SAME)
DEFINE_PREDICT(predict_f32, float, fours_f32, WIDEN, NARROW)

#endif
