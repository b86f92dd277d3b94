/* Sums of products of two clients' residuals: out[d] += a[d] * b[d], in their own precision.

   The bits of the plain loop: no fused multiply-add. Nothing is fetched ahead by hand: clients
   come as they lie in memory, and there processors are better at it. */

#ifndef CVRCORE_HISTORY_H
#define CVRCORE_HISTORY_H

#include <stddef.h>

/* As many as a register holds. */
#if defined(__AVX512F__)
#define REGISTER 64
#else
#define REGISTER 32
#endif
typedef double many_f64 __attribute__((vector_size(REGISTER), aligned(8), may_alias));
typedef float many_f32 __attribute__((vector_size(REGISTER), aligned(4), may_alias));

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

#endif
