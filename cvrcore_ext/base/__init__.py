"""Kernels built for any processor of the platform."""
