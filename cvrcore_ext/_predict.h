/* Clients' residuals from their entries of C, and what they add to sums over clients.

   In the precision of the arrays, with no fused multiply-add; sums over clients are double and take
   one client after the other: the bits of the plain loop. */

#ifndef CVRCORE_PREDICT_H
#define CVRCORE_PREDICT_H

#include <math.h>
#include <stddef.h>

#include "_fours.h"

/* out = weight * (row - entry * slope), entry = scale * sums. Where its square is beyond the product
   of its diagonals it becomes that product's root, with its sign: rounding, rates that differ, or a
   window of clients that are nearly parallel. */
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
        for (; d < n_features; d++) { /* what the registers leave */                              \
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
        enum { CHAINS = 4 }; /* additions that do not wait for each other */                      \
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
