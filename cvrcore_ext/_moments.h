/* One covariance step on a client's `C alpha` and `diag C`, and its score, in one pass.

   No fused multiply-add, and the score summed in eight lanes: the bits of the plain loop. */

#ifndef CVRCORE_MOMENTS_H
#define CVRCORE_MOMENTS_H

#include <stddef.h>

#include "_fours.h"

#define DEFINE_ADVANCE(NAME, REAL, VECTOR, UP, DOWN)                                              \
    static double NAME(REAL *restrict moment, REAL *restrict diagonal,                            \
                       const REAL *restrict residual, const double *restrict projection,          \
                       double keep, double gain, const double *restrict floor,                    \
                       ptrdiff_t n_features) {                                                    \
        fours_f64 sums[2] = {{0}};                                                                \
        ptrdiff_t d = 0;                                                                          \
        for (; d + 8 <= n_features; d += 8)                                                       \
            for (int half = 0; half < 2; half++) {                                                \
                const ptrdiff_t at = d + 4 * half;                                                \
                VECTOR *const m = (VECTOR *)(moment + at), *const q = (VECTOR *)(diagonal + at);  \
                const fours_f64 share = *(const fours_f64 *)(projection + at);                    \
                const fours_f64 r = UP(*(const VECTOR *)(residual + at));                         \
                const VECTOR next_m = DOWN(keep * UP(*m) + r * share);                            \
                const VECTOR next_q = DOWN(keep * UP(*q) + gain * (r * r));                       \
                const fours_f64 u = UP(next_m), v = UP(next_q);                                   \
                const fours_mask counts = v > *(const fours_f64 *)(floor + at);                   \
                sums[half] += (fours_f64)((fours_mask)(u * u / v) & counts);                      \
                *m = next_m;                                                                      \
                *q = next_q;                                                                      \
            }                                                                                     \
        double lanes[8];                                                                          \
        for (int lane = 0; lane < 8; lane++)                                                      \
            lanes[lane] = sums[lane / 4][lane % 4];                                               \
        for (ptrdiff_t e = d; e < n_features; e++) { /* what the registers leave */               \
            const double r = residual[e];                                                         \
            moment[e] = (REAL)(keep * (double)moment[e] + r * projection[e]);                     \
            diagonal[e] = (REAL)(keep * (double)diagonal[e] + gain * (r * r));                    \
            const double u = moment[e], v = diagonal[e];                                          \
            lanes[e - d] += v > floor[e] ? u * u / v : 0.0;                                       \
        }                                                                                         \
        return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +                                  \
               ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));                                   \
    }

DEFINE_ADVANCE(advance_f64, double, fours_f64, SAME, SAME)
DEFINE_ADVANCE(advance_f32, float, fours_f32, WIDEN, NARROW)

#endif
