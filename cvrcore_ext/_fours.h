/* Vectors of 32 bytes: four doubles or eight floats, and what compilers do poorly by themselves.

   Left alone, they change floats into doubles in halves. Wider registers need a shuffle for it,
   and divide no faster. */

#ifndef CVRCORE_FOURS_H
#define CVRCORE_FOURS_H

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

/* The first or the second four of eight. */
#define HALF(eight, half) (*((const fours_f32 *)&(eight) + (half)))

#endif
