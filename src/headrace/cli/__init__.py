"""The command ``headrace``: examine jobs, measure recipes, simulate; look at the shared host, and end it."""

from headrace.cli.main import main

__all__ = ["main"]
