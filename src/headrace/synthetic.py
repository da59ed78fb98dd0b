"""Samples without a dataset, for tests and benchmarks: storage speed and decode cost are what you set."""

from headrace.recipes.synthetic_decode import decode
from headrace.sources.simulated import synthetic as source

__all__ = ["decode", "source"]
