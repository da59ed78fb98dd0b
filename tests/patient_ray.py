"""Ray's nodes on a busy machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def once_more(start: Callable[[], T]) -> T:
    """Start Ray. It gives a node half a minute, fixed, which may be too little: then a second time."""
    try:
        return start()
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
    return start()
