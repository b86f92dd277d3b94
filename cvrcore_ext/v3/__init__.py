"""Kernels built for x86-64-v3: processors with AVX2."""
