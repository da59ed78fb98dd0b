"""Whether requests to storage wait for their turn in this process.

Sources that see to it themselves how many requests there are at once say here when more wait than are of use.
Whoever would ask for more looks here first: what a worker has claimed, no other worker can take.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

_crowds: set[int] = set()
_on_room: weakref.WeakSet[Any] = weakref.WeakSet()


def crowded() -> bool:
    """Whether more requests wait for their turn than keep storage busy."""
    return bool(_crowds)


def on_room(who: Any) -> None:
    """``who.room()`` is called whenever the crowd is gone, for as long as ``who`` lives."""
    _on_room.add(who)


class Crowd:
    """What one source has waiting."""

    def __init__(self) -> None:
        self._is = False
        weakref.finalize(self, _gone, id(self)).atexit = False

    def is_now(self, crowded: bool) -> bool:
        """Say how it is; whether ``tell`` is to be called, once no lock is held."""
        if crowded == self._is:
            return False
        self._is = crowded
        if crowded:
            _crowds.add(id(self))
        else:
            _crowds.discard(id(self))
        return not crowded


def _gone(crowd: int) -> None:
    _crowds.discard(crowd)


def tell() -> None:
    """There is room again."""
    if not _crowds:
        for who in list(_on_room):
            who.room()


def _in_child() -> None:
    """What the parent has under way stays with it."""
    global _crowds, _on_room
    _crowds, _on_room = set(), weakref.WeakSet()


os.register_at_fork(after_in_child=_in_child)
