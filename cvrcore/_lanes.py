"""Sums of many numbers in an order that both backends share; C twin: ``cvrcore_ext/_lanes.h``."""

import numpy as np

from ._jit import njit


@njit
def sum_in_lanes(terms):
    """Sum in eight running totals: a fixed order that vectorises."""
    lanes = np.zeros(8)
    blocks = terms.shape[0] // 8 * 8
    for d in range(0, blocks, 8):
        for lane in range(8):
            lanes[lane] += terms[d + lane]
    for d in range(blocks, terms.shape[0]):
        lanes[d - blocks] += terms[d]
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + (
        (lanes[4] + lanes[5]) + (lanes[6] + lanes[7])
    )
