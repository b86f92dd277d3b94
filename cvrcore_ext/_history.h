/* Sums of products of two clients' residuals, over all that are kept.

   out[d] += sum_s a[s, d] * b[s, d], with s in order: the bits of the plain loop. Clients come in no order that a processor could foresee: while two residuals of
   one are worked on, those of the next are fetched, line by line: a processor waits for no more
   than a dozen lines of memory at once. */

#ifndef CVRCORE_HISTORY_H
#define CVRCORE_HISTORY_H

#include <stddef.h>

#include "_fours.h"

/* The product of two floats is a double without rounding: there one rounding does for two. */
#define TWICE(sum, a, b) ((sum) + (a) * (b))
#if defined(__FMA__)
#define ONCE(sum, a, b) (fours_f64) _mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(sum))
#else
#define ONCE(sum, a, b) TWICE(sum, a, b)
#endif
#if defined(__AVX512F__)
typedef double sums_f64 __attribute__((vector_size(64), aligned(8), may_alias));
#else
typedef fours_f64 sums_f64;
#endif
#define LINES 128 /* bytes of one residual at a time */

/* Ask for memory that is wanted soon. */
static inline void fetch(const void *from, size_t n_bytes) {
    for (size_t byte = 0; byte < n_bytes; byte += 64)
        __builtin_prefetch((const char *)from + byte, 0, 2);
}

/* N residuals of two clients; `next` is the first of those of the client that follows, `more`
   something else of it or NULL. */
#define DEFINE_STEP(NAME, REAL, VECTOR, SUMS, UP, ADD, N)                                         \
    static inline void NAME(const REAL *a, const REAL *b, const REAL *next, const REAL *more,     \
                            ptrdiff_t n_features, double *out) {                                  \
        enum { RUN = LINES / sizeof(REAL), WIDE = sizeof(SUMS) / sizeof(double) };                \
        ptrdiff_t d = 0;                                                                          \
        for (; d + RUN <= n_features; d += RUN) {                                                 \
            SUMS total[RUN / WIDE];                                                               \
            for (int v = 0; v < RUN / WIDE; v++)                                                  \
                total[v] = *(const SUMS *)(out + d + v * WIDE);                                   \
            if (more)                                                                             \
                fetch(more + d, LINES);                                                           \
            for (int s = 0; s < N; s++) {                                                         \
                const ptrdiff_t at = s * n_features + d;                                          \
                const VECTOR *const left = (const VECTOR *)(a + at);                              \
                const VECTOR *const right = (const VECTOR *)(b + at);                             \
                fetch(next + at, LINES);                                                          \
                for (int v = 0; v < RUN / WIDE; v++)                                              \
                    total[v] = ADD(total[v], UP(left[v]), UP(right[v]));                          \
            }                                                                                     \
            for (int v = 0; v < RUN / WIDE; v++)                                                  \
                *(SUMS *)(out + d + v * WIDE) = total[v];                                         \
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
#define DEFINE_ADD(NAME, REAL, VECTOR, SUMS, UP, ADD)                                             \
    DEFINE_STEP(NAME##_one, REAL, VECTOR, SUMS, UP, ADD, 1)                                       \
    DEFINE_STEP(NAME##_two, REAL, VECTOR, SUMS, UP, ADD, 2)                                       \
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

DEFINE_ADD(add_f64, double, sums_f64, sums_f64, SAME, TWICE)
DEFINE_ADD(add_f32, float, fours_f32, fours_f64, WIDEN, ONCE)

#endif
