"""Progress for people: a bar where rich is installed and a terminal listens, plain lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def say(text: str) -> None:
    """One line for the person who waits."""
    print(text, file=sys.stderr, flush=True)


def track(items: Sequence[T], title: str, every_s: float = 5.0) -> Iterator[T]:
    """Iterate over ``items`` and show how far it is."""
    if sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import track as bar
        except ImportError:
            pass
        else:
            yield from bar(items, title, console=Console(stderr=True))
            return
    yield from _lines(items, title, len(items), every_s)


def _lines(items: Iterable[T], title: str, total: int, every_s: float) -> Iterator[T]:
    told = time.monotonic()
    for done, item in enumerate(items):
        now = time.monotonic()
        if done == 0 or now - told >= every_s:
            say(f"{title}: {done}/{total}")
            told = now
        yield item
    say(f"{title}: {total}/{total}")
