"""The command ``headrace``: look at the shared host, and end it."""

from headrace.cli.main import main

__all__ = ["main"]
