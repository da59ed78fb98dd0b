"""Values of arguments."""

from __future__ import annotations


def seconds(text: str) -> float:
    """A time to wait or to measure."""
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError
    return value
