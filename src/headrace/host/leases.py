"""Leases: who still needs a slot's memory.

A lease ends when all of its holders are done. Holders are what was made over the memory (arrays, tensors, views of
them), each for as long as it lives, and events: a GPU may read the memory long after the last tensor is gone.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Generic, Protocol, TypeVar

from headrace.core.places import Memory

S = TypeVar("S")


class Event(Protocol):
    """Something that will have happened. ``torch.cuda.Event`` is one."""

    def query(self) -> bool:
        """Whether it has happened."""
        ...

    def synchronize(self) -> None:
        """Wait until it has."""
        ...


class Loan(Generic[S]):
    """One slot's lease, as the pool knows it that lent the slot."""

    def __init__(self, slot: S) -> None:
        self.slot = slot
        self.life: Any = None
        """Tells the pool when nothing is left that was made over the memory."""
        self._events: list[Event] = []
        self._mapped: Any = None
        """The memory, while there are events: it stays mapped until they have happened."""
        self._closed = False

    @property
    def awaited(self) -> bool:
        """Whether there are events that, as far as known, have not happened."""
        return bool(self._events)

    def until(self, event: Event, mapped: Any) -> None:
        """The lease does not end before the event has happened."""
        if self._closed:
            event.synchronize()
        else:
            self._mapped = mapped
            self._events.append(event)

    def has_happened(self) -> bool:
        """Look for events, without waiting for them; whether all have happened."""
        while self._events and self._events[-1].query():
            self._events.pop()
        if not self._events:
            self._mapped = None
        return not self._events

    def close(self) -> None:
        """Wait for all events, now and from now on: there is nobody left to look for them."""
        self._closed = True
        while self._events:
            self._events[-1].synchronize()
            self._events.pop()
        self._mapped = None


class Lease:
    """A slot's memory on loan: a buffer that arrays and tensors can be made over."""

    memory: Memory
    """Its kind."""
    _loan: Loan[Any]
    _mapped: memoryview

    @property
    def mapped(self) -> memoryview:
        """The memory as this process has it mapped."""
        return self._mapped

    def until(self, event: Event) -> None:
        """Let the lease not end before an event has happened, even when all that was made over it is gone."""
        self._loan.until(event, self._mapped)


def make_lease(loan: Loan[Any], memory: Memory, mapped: memoryview) -> Any:
    """A ``Lease`` of a slot's memory. All that is made over it holds on to it."""
    lease = _lease_type(len(mapped)).from_buffer(mapped)
    lease.memory, lease._loan, lease._mapped = memory, loan, mapped
    return lease


@functools.lru_cache(maxsize=256)
def _lease_type(nbytes: int) -> Any:
    # A subclass, because plain ctypes arrays cannot be weakly referenced.
    return type("Lease", (Lease, ctypes.c_char * nbytes), {})
