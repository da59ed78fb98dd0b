"""Asking again where no worker does it: while a dataset is looked at, before anything is read of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from headrace.core import environment
from headrace.core.errors import NotNow, StorageUnavailable
from headrace.planning.window import Patience

Thing = TypeVar("Thing")
Out = TypeVar("Out")
_LONGEST = 60.0
"""Seconds: whoever starts a program waits for it."""


def again(ask: Callable[[Sequence[Thing]], Sequence[Out]], things: Sequence[Thing]) -> list[Out]:
    """The answers of ``ask``, one for each thing: those that are ``NotNow`` are asked for again, for a while."""
    patience = Patience(min(_LONGEST, environment.storage_patience()))
    end, luck = time.monotonic() + patience.total, random.Random().random
    out = list(ask(things))
    refusals = 0
    while left := [row for row, one in enumerate(out) if isinstance(one, NotNow)]:
        if time.monotonic() >= end:
            raise unavailable(out[left[0]])
        refusals += 1
        time.sleep(patience.pause(refusals, luck(), paced=True))
        for row, one in zip(left, ask([things[row] for row in left]), strict=True):
            out[row] = one
    return out


def unavailable(error: object) -> StorageUnavailable:
    """The error for storage that did not answer for so long."""
    return StorageUnavailable(f"{error}. Look after the storage, or the connection to it, and run again")
