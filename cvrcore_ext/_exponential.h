/* Twin of cvrcore/_exponential.py: exp of numbers up to 0, four at a time. */

#ifndef CVRCORE_EXPONENTIAL_H
#define CVRCORE_EXPONENTIAL_H

#include <stddef.h>

#include "_fours.h"

#define LEAST -708.0
#define SHIFT 6755399441055744.0
#define PER_DOUBLING 1.4426950408889634
#define LN2_HIGH 0.693147180369123816490
#define LN2_LOW 1.90821492927058770002e-10

static inline fours_f64 exponential_fours(fours_f64 x) {
    static const double coefficients[] = {
        1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0,
        1.0 / 40320.0,      1.0 / 5040.0,      1.0 / 720.0,      1.0 / 120.0,     1.0 / 24.0,
        1.0 / 6.0,          1.0 / 2.0,         1.0,              1.0,
    };
    const fours_f64 shifted = x * PER_DOUBLING + SHIFT, doublings = shifted - SHIFT;
    const fours_f64 rest = (x - doublings * LN2_HIGH) - doublings * LN2_LOW;
    fours_f64 total = {0.0};
    for (int n = 0; n < 14; n++)
        total = total * rest + coefficients[n];
    /* The last bits of `shifted` are the whole number; in the place of the exponent they double. */
    const fours_mask power = ((fours_mask)shifted + 1023) << 52;
    return (fours_f64)((fours_mask)(total * (fours_f64)power) & (fours_mask)(x >= LEAST));
}

/* x <- exp(rate * x), of numbers for which that is no more than 1. */
static inline void exponentials(double *x, ptrdiff_t n, double rate) {
    ptrdiff_t i = 0;
    for (; i + 4 <= n; i += 4)
        *(fours_f64 *)(x + i) = exponential_fours(rate * *(const fours_f64 *)(x + i));
    for (; i < n; i++) {
        const fours_f64 one = {rate * x[i], 0.0, 0.0, 0.0};
        x[i] = exponential_fours(one)[0];
    }
}

#endif
