/* Clients' residuals from their entries of C, and what they add to sums over clients.

   No fused multiply-add, and sums take one client after the other: the bits of the plain loop. */

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
                     const REAL *row, const REAL *diagonal, double weight, ptrdiff_t n_features,  \
                     REAL *restrict out) {                                                        \
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
            *(VECTOR *)(out + d) = DOWN(weight * delta);                                          \
        }                                                                                         \
        for (; d < n_features; d++) { /* what the registers leave */                              \
            const double most = (double)diagonal[d] * (double)other[d];                           \
            double entry = scale * (double)sums[d];                                               \
            if (entry * entry > most)                                                             \
                entry = copysign(sqrt(most), entry);                                              \
            out[d] = (REAL)(weight * ((double)row[d] - entry * (double)slope[d]));                \
        }                                                                                         \
    }

/* projection += share * residual, squares += residual^2, of a few clients. */
#define DEFINE_SUMS(NAME, REAL, VECTOR, UP)                                                       \
    static void NAME(const REAL *const *residuals, const double *shares, ptrdiff_t n_clients,     \
                     ptrdiff_t n_features, double *restrict projection,                           \
                     double *restrict squares) {                                                  \
        ptrdiff_t d = 0;                                                                          \
        for (; d + 4 <= n_features; d += 4) {                                                     \
            fours_f64 sum = *(const fours_f64 *)(projection + d);                                 \
            fours_f64 square = *(const fours_f64 *)(squares + d);                                 \
            for (ptrdiff_t c = 0; c < n_clients; c++) {                                           \
                const fours_f64 value = UP(*(const VECTOR *)(residuals[c] + d));                  \
                sum += shares[c] * value;                                                         \
                square += value * value;                                                          \
            }                                                                                     \
            *(fours_f64 *)(projection + d) = sum;                                                 \
            *(fours_f64 *)(squares + d) = square;                                                 \
        }                                                                                         \
        for (; d < n_features; d++)                                                               \
            for (ptrdiff_t c = 0; c < n_clients; c++) {                                           \
                const double value = residuals[c][d];                                             \
                projection[d] += shares[c] * value;                                               \
                squares[d] += value * value;                                                      \
            }                                                                                     \
    }

DEFINE_PREDICT(predict_f64, double, fours_f64, SAME, SAME)
DEFINE_PREDICT(predict_f32, float, fours_f32, WIDEN, NARROW)
DEFINE_SUMS(sums_f64, double, fours_f64, SAME)
DEFINE_SUMS(sums_f32, float, fours_f32, WIDEN)

#endif
