/* Clients' residuals from their entries of C, and sums of the residuals over clients.

   The arithmetic has the precision of the arrays, without fused multiply-add; sums over clients are
   double and add clients in order: the same bits as the plain loop. */

#ifndef CVRCORE_PREDICT_H
#define CVRCORE_PREDICT_H

#include <math.h>
#include <stddef.h>

#include "simd256.h"

/* out = weight * (row - entry * slope), entry = scale * sums. |entry| is clipped to the square root
   of the product of its two diagonal entries, which rounding, different rates, or a window of nearly
   parallel clients can exceed. */
#define DEFINE_PREDICT(NAME, REAL, VECTOR, MASK, ROOT, SIGN)                                      \
    static void NAME(const REAL *sums, REAL scale, const REAL *slope, const REAL *other,          \
                     const REAL *row, const REAL *diagonal, REAL weight, ptrdiff_t n_features,    \
                     REAL *restrict out) {                                                        \
        enum { WIDE = sizeof(VECTOR) / sizeof(REAL) };                                            \
        ptrdiff_t d = 0;                                                                          \
        for (; d + WIDE <= n_features; d += WIDE) {                                               \
            VECTOR entry = scale * *(const VECTOR *)(sums + d);                                   \
            const VECTOR most = *(const VECTOR *)(diagonal + d) * *(const VECTOR *)(other + d);   \
            const MASK beyond = entry * entry > most;                                             \
            if (ANY(beyond))                                                                      \
                for (int lane = 0; lane < WIDE; lane++)                                           \
                    if (beyond[lane])                                                             \
                        entry[lane] = SIGN(ROOT(most[lane]), entry[lane]);                        \
            *(VECTOR *)(out + d) =                                                                \
                weight * (*(const VECTOR *)(row + d) - entry * *(const VECTOR *)(slope + d));     \
        }                                                                                         \
        for (; d < n_features; d++) { /* remainder */                                             \
            const REAL most = diagonal[d] * other[d];                                             \
            REAL entry = scale * sums[d];                                                         \
            if (entry * entry > most)                                                             \
                entry = SIGN(ROOT(most), entry);                                                  \
            out[d] = weight * (row[d] - entry * slope[d]);                                        \
        }                                                                                         \
    }

/* projection += share * residual, squares += residual^2, of a few clients. */
#define DEFINE_SUMS(NAME, REAL, VECTOR, UP)                                                       \
    static void NAME(const REAL *const *residuals, const double *shares, ptrdiff_t n_clients,     \
                     ptrdiff_t n_features, double *restrict projection,                           \
                     double *restrict squares) {                                                  \
        enum { CHAINS = 4 }; /* independent chains of additions */                                \
        ptrdiff_t d = 0;                                                                          \
        for (; d + 4 * CHAINS <= n_features; d += 4 * CHAINS) {                                   \
            fours_f64 sum[CHAINS], square[CHAINS];                                                \
            for (int i = 0; i < CHAINS; i++) {                                                    \
                sum[i] = *(const fours_f64 *)(projection + d + 4 * i);                            \
                square[i] = *(const fours_f64 *)(squares + d + 4 * i);                            \
            }                                                                                     \
            for (ptrdiff_t c = 0; c < n_clients; c++)                                             \
                for (int i = 0; i < CHAINS; i++) {                                                \
                    const fours_f64 value = UP(*(const VECTOR *)(residuals[c] + d + 4 * i));      \
                    sum[i] += shares[c] * value;                                                  \
                    square[i] += value * value;                                                   \
                }                                                                                 \
            for (int i = 0; i < CHAINS; i++) {                                                    \
                *(fours_f64 *)(projection + d + 4 * i) = sum[i];                                  \
                *(fours_f64 *)(squares + d + 4 * i) = square[i];                                  \
            }                                                                                     \
        }                                                                                         \
        for (; d < n_features; d++)                                                               \
            for (ptrdiff_t c = 0; c < n_clients; c++) {                                           \
                const double value = residuals[c][d];                                             \
                projection[d] += shares[c] * value;                                               \
                squares[d] += value * value;                                                      \
            }                                                                                     \
    }

DEFINE_PREDICT(predict_f64, double, fours_f64, fours_mask, sqrt, copysign)
DEFINE_PREDICT(predict_f32, float, eights_f32, eights_mask, sqrtf, copysignf)
DEFINE_SUMS(sums_f64, double, fours_f64, SAME)
DEFINE_SUMS(sums_f32, float, fours_f32, WIDEN)

#endif
