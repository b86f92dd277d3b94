"""Kernels built for x86-64-v4: processors with AVX-512."""
