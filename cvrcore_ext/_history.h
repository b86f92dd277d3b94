/* Sums of products of two clients' residuals, over all that are kept.

   out[d] += sum_s a[s, d] * b[s, d], with s in order and no fused multiply-add: the bits of the
   plain loop. A run of coordinates keeps its sums in registers over all s. Clients come in no
   order that a processor could foresee: while one is worked on, the next is fetched. */

#ifndef CVRCORE_HISTORY_H
#define CVRCORE_HISTORY_H

#include <stddef.h>

/* As wide as the build's registers; compilers widen floats in halves unless told how. */
#if defined(__AVX512F__)
#include <immintrin.h>
#define SUMS 8
#define WIDEN(from) (sums_f64) _mm512_cvtps_pd(_mm256_loadu_ps(from))
#elif defined(__AVX__)
#include <immintrin.h>
#define SUMS 4
#define WIDEN(from) (sums_f64) _mm256_cvtps_pd(_mm_loadu_ps(from))
#else
#define SUMS 2
#define WIDEN(from) __builtin_convertvector(*(const sums_f32 *)(from), sums_f64)
#endif
#define SAME(from) (*(const sums_f64 *)(from))
#define RUN (4 * SUMS)

typedef double sums_f64 __attribute__((vector_size(8 * SUMS), aligned(8), may_alias));
typedef float sums_f32 __attribute__((vector_size(4 * SUMS), aligned(4), may_alias));

/* Ask for memory that is wanted soon. */
static inline void fetch(const void *from, size_t n_bytes) {
    for (size_t byte = 0; byte < n_bytes; byte += 64)
        __builtin_prefetch((const char *)from + byte, 0, 2);
}

#define DEFINE_ADD(NAME, REAL, LOAD)                                                              \
    static void NAME(const REAL *a, const REAL *b, const REAL *next, ptrdiff_t n_stored,          \
                     ptrdiff_t n_features, double *out) {                                         \
        ptrdiff_t d = 0;                                                                          \
        for (; d + RUN <= n_features; d += RUN) {                                                 \
            sums_f64 total[4];                                                                    \
            for (int v = 0; v < 4; v++)                                                           \
                total[v] = *(const sums_f64 *)(out + d + v * SUMS);                               \
            for (ptrdiff_t s = 0; s < n_stored; s++) {                                            \
                const ptrdiff_t at = s * n_features + d;                                          \
                fetch(next + at, RUN * sizeof(REAL));                                             \
                for (int v = 0; v < 4; v++)                                                       \
                    total[v] += LOAD(a + at + v * SUMS) * LOAD(b + at + v * SUMS);                \
            }                                                                                     \
            for (int v = 0; v < 4; v++)                                                           \
                *(sums_f64 *)(out + d + v * SUMS) = total[v];                                     \
        }                                                                                         \
        for (ptrdiff_t s = 0; s < n_stored; s++) /* what the runs leave */                        \
            for (ptrdiff_t e = d; e < n_features; e++)                                            \
                out[e] += (double)a[s * n_features + e] * (double)b[s * n_features + e];          \
    }

DEFINE_ADD(add_f64, double, SAME)
DEFINE_ADD(add_f32, float, WIDEN)

#endif
