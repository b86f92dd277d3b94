"""Residuals of a round -> entries of C and scores v: Algorithm 1, lines 6 and 13 to 18.

`estimator` keeps moments and scores; `store` keeps C as a log of residuals, as packed
triangles or as a window. Imports neither `clustering` nor `draws`.
"""
