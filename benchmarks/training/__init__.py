"""Training jobs whose accuracy is what is measured; used by ``benchmarks/learning.py``."""
