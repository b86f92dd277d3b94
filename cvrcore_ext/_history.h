/* Sums of products of two clients' residuals: out[d] += a[d] * b[d], in their own precision.

   The bits of the plain loop: no fused multiply-add. Where whole rows are read nothing is fetched
   ahead by hand: clients come as they lie in memory, and there processors are better at it. */

#ifndef CVRCORE_HISTORY_H
#define CVRCORE_HISTORY_H

#include <stddef.h>

#include "_registers.h"

/* Of n_steps residuals, STEPS at most, each `stride_a` and `stride_b` after the last, in their order:
   sums are read and written once for all of them. */
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

/* Of one residual, some coordinates of it: too short a run for the processor to see that it goes
   on with the next client. */
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
