"""Benchmarks: every claim of speed has its file here."""
