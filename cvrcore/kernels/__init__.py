"""Compiled loops: `dispatch` binds each kernel to its Cython build or its Numba source.

One file a subject; ``cvrcore_ext`` has a Cython twin of the same name. Kernels trust their
arguments: callers validate.
"""
