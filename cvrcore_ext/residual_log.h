/* Sums of products of two clients' residuals: out[d] += a[d] * b[d], in the dtype of the arrays.

   No fused multiply-add: the same bits as the plain loop. Whole rows are read without prefetch
   instructions: clients come in memory order, and the hardware prefetcher is better at that. */

#ifndef CVRCORE_RESIDUAL_LOG_H
#define CVRCORE_RESIDUAL_LOG_H

#include <stddef.h>

#include "registers.h"

/* n_steps <= STEPS residuals at distances `stride_a` and `stride_b`, in order: the sums are read and
   written once for all steps. */
#define STEPS 4
#define DEFINE_ADD(NAME, REAL, MANY)                                                              \
    static inline __attribute__((always_inline)) void NAME##_few(                                 \
        const REAL *a, ptrdiff_t stride_a, const REAL *b, ptrdiff_t stride_b, int n_steps,        \
        ptrdiff_t n_features, REAL *out) {                                                        \
        enum { WIDE = REGISTER / sizeof(REAL) };                                                  \
        ptrdiff_t d = 0;                                                                          \
        for (; d + WIDE <= n_features; d += WIDE) {                                               \
            MANY sum = *(MANY *)(out + d);                                                        \
            for (int s = 0; s < n_steps; s++)                                                     \
                sum += *(const MANY *)(a + s * stride_a + d) *                                    \
                       *(const MANY *)(b + s * stride_b + d);                                     \
            *(MANY *)(out + d) = sum;                                                             \
        }                                                                                         \
        for (; d < n_features; d++)                                                               \
            for (int s = 0; s < n_steps; s++)                                                     \
                out[d] += a[s * stride_a + d] * b[s * stride_b + d];                              \
    }                                                                                             \
    static void NAME(const REAL *a, ptrdiff_t stride_a, const REAL *b, ptrdiff_t stride_b,        \
                     ptrdiff_t n_steps, ptrdiff_t n_features, REAL *out) {                        \
        switch (n_steps) {                                                                        \
        case 1: NAME##_few(a, stride_a, b, stride_b, 1, n_features, out); break;                  \
        case 2: NAME##_few(a, stride_a, b, stride_b, 2, n_features, out); break;                  \
        case 3: NAME##_few(a, stride_a, b, stride_b, 3, n_features, out); break;                  \
        case STEPS: NAME##_few(a, stride_a, b, stride_b, STEPS, n_features, out); break;          \
        }                                                                                         \
    }

DEFINE_ADD(add_f64, double, many_f64)
DEFINE_ADD(add_f32, float, many_f32)

/* Some coordinates of one residual, with a prefetch of the next client's: the range is too short for
   the hardware prefetcher. */
#define FETCH(place) __builtin_prefetch(place)
#define DEFINE_ADD_NEXT(NAME, REAL, MANY)                                                         \
    static void NAME(const REAL *a, const REAL *b, const REAL *next_a, const REAL *next_b,        \
                     ptrdiff_t n_features, REAL *out) {                                           \
        enum { WIDE = REGISTER / sizeof(REAL), LINE = 64 / sizeof(REAL) };                        \
        ptrdiff_t d = 0;                                                                          \
        for (; d + LINE <= n_features; d += LINE) {                                               \
            FETCH(next_a + d);                                                                    \
            FETCH(next_b + d);                                                                    \
            for (ptrdiff_t v = d; v < d + LINE; v += WIDE)                                        \
                *(MANY *)(out + v) += *(const MANY *)(a + v) * *(const MANY *)(b + v);            \
        }                                                                                         \
        for (; d < n_features; d++)                                                               \
            out[d] += a[d] * b[d];                                                                \
    }

DEFINE_ADD_NEXT(add_next_f64, double, many_f64)
DEFINE_ADD_NEXT(add_next_f32, float, many_f32)

#endif
