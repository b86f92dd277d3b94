/* Vectors as wide as the build's registers; the compiler would spill wider vectors to memory. */

#ifndef CVRCORE_REGISTERS_H
#define CVRCORE_REGISTERS_H

#if defined(__AVX__)
#define REGISTER 32
#else
#define REGISTER 16
#endif

typedef double many_f64 __attribute__((vector_size(REGISTER), aligned(8), may_alias));
typedef float many_f32 __attribute__((vector_size(REGISTER), aligned(4), may_alias));

#endif
