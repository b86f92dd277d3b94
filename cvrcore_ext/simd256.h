/* Vectors of 32 bytes (four doubles or eight floats), and conversions that compilers do poorly.

   Compilers convert floats to doubles half a vector at a time. Wider registers need a shuffle for
   it, and divide no faster. */

#ifndef CVRCORE_SIMD256_H
#define CVRCORE_SIMD256_H

typedef double fours_f64 __attribute__((vector_size(32), aligned(8), may_alias));
typedef long long fours_mask __attribute__((vector_size(32)));
typedef float fours_f32 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float eights_f32 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int eights_mask __attribute__((vector_size(32)));

#define SAME(four) (four)
#if defined(__AVX__)
#include <immintrin.h>
#define WIDEN(four) (fours_f64) _mm256_cvtps_pd((__m128)(four))
#define ANY(mask) (!_mm256_testz_si256((__m256i)(mask), (__m256i)(mask)))
#else
#define WIDEN(four) __builtin_convertvector(four, fours_f64)
#define ANY(mask) (((fours_mask)(mask))[0] | ((fours_mask)(mask))[1] | ((fours_mask)(mask))[2] | ((fours_mask)(mask))[3])
#endif

/* The first or the second four of eight floats. */
#define HALF(eight, half) (*((const fours_f32 *)&(eight) + (half)))

#endif
