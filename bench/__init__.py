"""Benchmarks of every claim about speed, memory and quality."""
