/* Four doubles in a register, and their change from floats and back.

   Left to themselves, compilers make that change in halves. Wider registers need a shuffle for
   it, and divide no faster. */

#ifndef CVRCORE_FOURS_H
#define CVRCORE_FOURS_H

typedef double fours_f64 __attribute__((vector_size(32), aligned(8), may_alias));
typedef long long fours_mask __attribute__((vector_size(32)));
typedef float fours_f32 __attribute__((vector_size(16), aligned(4), may_alias));

#define SAME(four) (four)
#if defined(__AVX__)
#include <immintrin.h>
#define WIDEN(four) (fours_f64) _mm256_cvtps_pd((__m128)(four))
#define NARROW(four) (fours_f32) _mm256_cvtpd_ps((__m256d)(four))
#define ANY(mask) _mm256_movemask_pd((__m256d)(mask))
#else
#define WIDEN(four) __builtin_convertvector(four, fours_f64)
#define NARROW(four) __builtin_convertvector(four, fours_f32)
#define ANY(mask) ((mask)[0] | (mask)[1] | (mask)[2] | (mask)[3])
#endif

#endif
