"""The command ``headrace``: examine jobs, measure recipes, simulate; keep datasets; look at the shared host."""

from headrace.cli.main import main

__all__ = ["main"]
