/* One covariance step on a client's `C alpha` and `diag C`, and its score, in one pass.

   The arithmetic has the precision of the arrays, without fused multiply-add; the score is summed in
   double, in eight lanes. The same bits as the plain loop. */

#ifndef CVRCORE_MOMENTS_H
#define CVRCORE_MOMENTS_H

#include <stddef.h>

#include "simd256.h"

/* `WIDE` coordinates at a time; WIDE divides eight. */
#define DEFINE_ADVANCE(NAME, REAL, VECTOR, MASK, WIDE, ADD)                                       \
    static double NAME(REAL *restrict moment, REAL *restrict diagonal,                            \
                       const REAL *restrict residual, const REAL *restrict projection, REAL keep, \
                       REAL gain, const REAL *restrict floor, ptrdiff_t n_features) {             \
        fours_f64 sums[2] = {{0}};                                                                \
        ptrdiff_t d = 0;                                                                          \
        for (; d + 8 <= n_features; d += 8)                                                       \
            for (int part = 0; part < 8; part += WIDE) {                                          \
                VECTOR *const m = (VECTOR *)(moment + d + part);                                  \
                VECTOR *const q = (VECTOR *)(diagonal + d + part);                                \
                const VECTOR r = *(const VECTOR *)(residual + d + part);                          \
                const VECTOR u = keep * *m + r * *(const VECTOR *)(projection + d + part);        \
                const VECTOR v = keep * *q + gain * (r * r);                                      \
                const MASK counts = v > *(const VECTOR *)(floor + d + part);                      \
                const VECTOR terms = (VECTOR)((MASK)(u / v * u) & counts);                        \
                ADD(sums, terms, part);                                                           \
                *m = u;                                                                           \
                *q = v;                                                                           \
            }                                                                                     \
        double lanes[8];                                                                          \
        for (int lane = 0; lane < 8; lane++)                                                      \
            lanes[lane] = sums[lane / 4][lane % 4];                                               \
        for (ptrdiff_t e = d; e < n_features; e++) { /* remainder */                              \
            const REAL r = residual[e];                                                           \
            const REAL u = keep * moment[e] + r * projection[e];                                  \
            const REAL v = keep * diagonal[e] + gain * (r * r);                                   \
            lanes[e - d] += v > floor[e] ? u / v * u : 0;                                         \
            moment[e] = u;                                                                        \
            diagonal[e] = v;                                                                      \
        }                                                                                         \
        return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +                                  \
               ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));                                   \
    }

#define ADD_FOUR(sums, terms, part) sums[(part) / 4] += terms
#define ADD_EIGHT(sums, terms, part)                                                              \
    sums[0] += WIDEN(HALF(terms, 0)), sums[1] += WIDEN(HALF(terms, 1))

DEFINE_ADVANCE(advance_f64, double, fours_f64, fours_mask, 4, ADD_FOUR)
DEFINE_ADVANCE(advance_f32, float, eights_f32, eights_mask, 8, ADD_EIGHT)

#endif
