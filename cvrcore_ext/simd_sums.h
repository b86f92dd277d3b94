/* Twin of `_sum_in_lanes` in cvrcore/kernels: a sum in eight running totals, a fixed order that vectorises. */

#ifndef CVRCORE_SIMD_SUMS_H
#define CVRCORE_SIMD_SUMS_H

#include <stddef.h>

static double sum_in_lanes(const double *terms, ptrdiff_t n_terms) {
    double lanes[8] = {0.0};
    ptrdiff_t d = 0;
    for (; d + 8 <= n_terms; d += 8)
        for (int lane = 0; lane < 8; lane++)
            lanes[lane] += terms[d + lane];
    for (int lane = 0; d < n_terms; d++, lane++)
        lanes[lane] += terms[d];
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
           ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

#endif
