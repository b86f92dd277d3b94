/* Sums of products of two clients' residuals, over all that are kept.

   out[d] += sum_s a[s, d] * b[s, d], with s in order and no fused multiply-add: the bits of the
   plain loop. Clients come in no order that a processor could foresee: while two residuals of
   one are worked on, those of the next are fetched, line by line: a processor waits for no more
   than a dozen lines of memory at once. */

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
#define RUN 16 /* coordinates at a time */

typedef double sums_f64 __attribute__((vector_size(8 * SUMS), aligned(8), may_alias));
typedef float sums_f32 __attribute__((vector_size(4 * SUMS), aligned(4), may_alias));

/* Ask for memory that is wanted soon. */
static inline void fetch(const void *from, size_t n_bytes) {
    for (size_t byte = 0; byte < n_bytes; byte += 64)
        __builtin_prefetch((const char *)from + byte, 0, 2);
}

/* N residuals of two clients; `next` is the first of those of the client that follows, `more`
   something else of it or NULL. */
#define DEFINE_STEP(NAME, REAL, LOAD, N)                                                          \
    static inline void NAME(const REAL *a, const REAL *b, const REAL *next, const REAL *more,     \
                            ptrdiff_t n_features, double *out) {                                  \
        ptrdiff_t d = 0;                                                                          \
        for (; d + RUN <= n_features; d += RUN) {                                                 \
            sums_f64 total[RUN / SUMS];                                                           \
            for (int v = 0; v < RUN / SUMS; v++)                                                  \
                total[v] = *(const sums_f64 *)(out + d + v * SUMS);                               \
            if (more)                                                                             \
                fetch(more + d, RUN * sizeof(REAL));                                              \
            for (int s = 0; s < N; s++) {                                                         \
                const ptrdiff_t at = s * n_features + d;                                          \
                fetch(next + at, RUN * sizeof(REAL));                                             \
                for (int v = 0; v < RUN / SUMS; v++)                                              \
                    total[v] += LOAD(a + at + v * SUMS) * LOAD(b + at + v * SUMS);                \
            }                                                                                     \
            for (int v = 0; v < RUN / SUMS; v++)                                                  \
                *(sums_f64 *)(out + d + v * SUMS) = total[v];                                     \
        }                                                                                         \
        if (more)                                                                                 \
            fetch(more + d, (n_features - d) * sizeof(REAL));                                     \
        for (int s = 0; s < N; s++) { /* what the runs leave */                                   \
            const ptrdiff_t row = s * n_features;                                                 \
            fetch(next + row + d, (n_features - d) * sizeof(REAL));                               \
            for (ptrdiff_t e = d; e < n_features; e++)                                            \
                out[e] += (double)a[row + e] * (double)b[row + e];                                \
        }                                                                                         \
    }

/* `row` and `diagonal` are the following client's, fetched on the way, or NULL. */
#define DEFINE_ADD(NAME, REAL, LOAD)                                                              \
    DEFINE_STEP(NAME##_one, REAL, LOAD, 1)                                                        \
    DEFINE_STEP(NAME##_two, REAL, LOAD, 2)                                                        \
    static void NAME(const REAL *a, const REAL *b, const REAL *next, const REAL *row,             \
                     const REAL *diagonal, ptrdiff_t n_stored, ptrdiff_t n_features,              \
                     double *out) {                                                               \
        const ptrdiff_t pairs = n_stored / 2;                                                     \
        for (ptrdiff_t pair = 0; pair < pairs; pair++) {                                          \
            const ptrdiff_t at = 2 * pair * n_features;                                           \
            const REAL *more = pair == 0 ? row : pair == 1 ? diagonal : NULL;                     \
            NAME##_two(a + at, b + at, next + at, more, n_features, out);                         \
        }                                                                                         \
        if (n_stored % 2) {                                                                       \
            const ptrdiff_t at = 2 * pairs * n_features;                                          \
            const REAL *more = pairs == 0 ? row : pairs == 1 ? diagonal : NULL;                   \
            NAME##_one(a + at, b + at, next + at, more, n_features, out);                         \
        }                                                                                         \
    }

DEFINE_ADD(add_f64, double, SAME)
DEFINE_ADD(add_f32, float, WIDEN)

#endif
