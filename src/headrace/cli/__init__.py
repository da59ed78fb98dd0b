"""The command ``headrace``: look at the shared host, and end it; simulate jobs."""

from headrace.cli.main import main

__all__ = ["main"]
