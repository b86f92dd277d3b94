/* Sums of products of two clients' residuals: out[d] += a[d] * b[d], in their own precision.

   The bits of the plain loop: no fused multiply-add. Memory is gone through as it lies: a
   processor that is led along two residuals at once waits for it instead of working meanwhile. */

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
#define LINES 128 /* bytes of one residual at a time */

/* Ask for memory that is wanted soon. */
static inline void fetch(const void *from, size_t n_bytes) {
    for (size_t byte = 0; byte < n_bytes; byte += 64)
        __builtin_prefetch((const char *)from + byte, 0, 2);
}

static inline void fetch_to_write(const void *from, size_t n_bytes) {
    for (size_t byte = 0; byte < n_bytes; byte += 64)
        __builtin_prefetch((const char *)from + byte, 1, 2);
}

/* One residual; `next` and `beside` are the two of clients to come, fetched on the way. */
#define DEFINE_ADD(NAME, REAL, MANY)                                                              \
    static void NAME(const REAL *a, const REAL *b, const REAL *next, const REAL *beside,          \
                     ptrdiff_t n_features, REAL *out) {                                           \
        enum { RUN = LINES / sizeof(REAL), WIDE = REGISTER / sizeof(REAL) };                      \
        ptrdiff_t d = 0;                                                                          \
        for (; d + RUN <= n_features; d += RUN) {                                                 \
            fetch(next + d, LINES);                                                               \
            fetch(beside + d, LINES);                                                             \
            for (int v = 0; v < RUN; v += WIDE)                                                   \
                *(MANY *)(out + d + v) += *(const MANY *)(a + d + v) * *(const MANY *)(b + d + v);\
        }                                                                                         \
        fetch(next + d, (n_features - d) * sizeof(REAL));                                         \
        fetch(beside + d, (n_features - d) * sizeof(REAL));                                       \
        for (; d + WIDE <= n_features; d += WIDE)                                                 \
            *(MANY *)(out + d) += *(const MANY *)(a + d) * *(const MANY *)(b + d);                \
        for (; d < n_features; d++)                                                               \
            out[d] += a[d] * b[d];                                                                \
    }

DEFINE_ADD(add_f64, double, many_f64)
DEFINE_ADD(add_f32, float, many_f32)

#endif
