"""Sessions: what prepares a loader's batches, one kind for each kind of dataset.

A session owns a host (its workers and memory) and turns delivered batches into what the user sees. It can run
one epoch after another, and is told of the next one early, so that its first batches are prepared while the
present one ends.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.cache.arena import Arena
from headrace.coordinate.coordinator import Batch, Coordinator, Draws
from headrace.coordinate.directory import Catalogue, Directory
from headrace.coordinate.messages import Order, OrderDone
from headrace.coordinate.shared_directory import SharedDirectory
from headrace.core.errors import BadSample, SampleError, TooManyBadSamples
from headrace.core.forms import Form
from headrace.engine.board import Board
from headrace.engine.store import Cache
from headrace.engine.worker import rebuild
from headrace.host.base import Host
from headrace.host.client import SharedClient
from headrace.host.embedded import ProcessHost
from headrace.host.inline import InlineHost
from headrace.host.slots import HostSlot, SlotPool
from headrace.loader.codec import decode
from headrace.loader.device import DeviceFeed
from headrace.loader.pinning import pin_value
from headrace.loader.placing import settled


class _Skipped:
    """Stands for a batch none of whose samples could be prepared."""


SKIPPED = _Skipped()


class Session(Protocol):
    """Prepares and hands out batches."""

    looks_ahead: bool
    """Whether it prepares the first batches of the next epoch while the present one ends."""
    feed: DeviceFeed | None
    """Copies batches to a device, if that is where they are to be."""
    copies: int
    """Batches whose copies are begun before they are asked for."""

    @property
    def ready(self) -> bool:
        """Whether the next batch is there, so that asking for it waits for nothing."""
        ...

    def begin(self, draws: Draws, following: Draws | None) -> None:
        """Start an epoch; ``following``: the draws of the next one, to be prepared ahead."""
        ...

    def next(self, timeout: float | None) -> tuple[Any, Any] | None:
        """What was drawn and the batch made of it; None at the end of the draws."""
        ...

    def rest(self) -> None:
        """The epoch is over, and the next may be long in coming."""
        ...

    def abandon(self) -> None:
        """The epoch is left before its end."""
        ...

    def close(self) -> None:
        """Stop workers and free memory."""
        ...

    @property
    def closed(self) -> bool:
        """Whether it is over with this session."""
        ...


class ErrorBook:
    """Bad samples, by the user's rule for them."""

    def __init__(self, rule: str, budget: int, name: Callable[[int], str]) -> None:
        self.rule = rule
        self._budget = budget
        self._name = name
        self.bad: dict[int, BadSample] = {}

    def note(self, batch: Batch) -> list[int]:
        """Write a batch's faults down; returns its bad rows. Raises where the rule or the budget says so."""
        if not batch.faults:
            return []
        for row, reason, trace in batch.faults:
            index = int(batch.draw.indices[row])
            sample = BadSample(index, self._name(index), reason, batch.draw.epoch, trace)
            if self.rule == "raise":
                raise SampleError(sample)
            self.bad.setdefault(index, sample)
        if len(self.bad) > self._budget:
            raise TooManyBadSamples(list(self.bad.values()), self._budget)
        return [row for row, _, _ in batch.faults]


@dataclass
class HostParts:
    """What every host is built from."""

    arena: Arena
    board: Board
    directory: Directory
    cache: Cache | None

    @classmethod
    def build(cls, samples: int, budgets: dict[Form, int]) -> HostParts:
        """An arena with a board, and the memory of a cache if there is to be one."""
        arena = Arena()
        board = Board(arena)
        cache = Cache.make(sum(budgets.values())) if sum(budgets.values()) else None
        return cls(arena, board, Directory(samples, budgets, cache.span if cache else 0), cache)


class Hosted:
    """What sessions with a host share."""

    looks_ahead = True
    host: Host
    feed: DeviceFeed | None = None
    """Copies batches to a device, if that is where they are to be."""
    copies = 1
    """Batches whose copies are begun before they are asked for."""

    def __init__(self, book: ErrorBook, *, pins: bool) -> None:
        """``pins``: batches are handed out in page-locked memory."""
        self._book, self._pins = book, pins
        self._lent: Any = None
        """The lease of the batch in hand."""

    @property
    def ready(self) -> bool:
        """Whether the next batch is there, so that asking for it waits for nothing."""
        return self.host.ready

    def begin(self, draws: Draws, following: Draws | None) -> None:
        """See ``Session``."""
        self.host.coordinator.feed(draws)
        if following is not None:
            self.host.coordinator.feed(following)

    def follow(self, draws: Draws) -> None:
        """The epoch now beginning is already fed; feed the one after."""
        self.host.coordinator.feed(draws)

    def rest(self) -> None:
        """See ``Session``."""
        self.host.slots.rest()

    def abandon(self) -> None:
        """See ``Session``."""
        self.host.abandon()

    def close(self) -> None:
        """See ``Session``."""
        self.host.close()

    @property
    def closed(self) -> bool:
        """See ``Session``."""
        return self.host.closed

    def _give_back(self, batch: Batch) -> None:
        assert isinstance(batch.slot, HostSlot)
        self.host.slots.put_back(batch.slot)

    def _lease(self, batch: Batch) -> Any:
        assert isinstance(batch.slot, HostSlot)
        lease = self.host.slots.lease(batch.slot)
        if self.feed is not None:
            self._lent = lease
        return lease

    def _collated(self, batch: Batch) -> Any:
        """The batch that a worker collated, or the exception that it met."""
        done = batch.done
        try:
            if done is not None and done.error:
                raise rebuild(done.error)
            self._book.note(batch)
            if done is None or not done.result:
                self._give_back(batch)
                return SKIPPED
        except BaseException:
            self._give_back(batch)
            raise
        if not batch.slot.nbytes:
            value = decode(done.result, None)
            self._give_back(batch)
            return value
        return decode(done.result, self._lease(batch))

    def _placed(self, value: Any, finish: Callable[[Any], Any] | None = None) -> Any:
        """A batch where it is wanted: as it is, pinned, or on its way to a device, where it is finished."""
        lent, self._lent = self._lent, None
        if value is SKIPPED:
            return value
        if self.feed is not None:
            return self.feed.send(value, lent, finish)
        return pin_value(value) if self._pins else value


def make_host(
    parts: HostParts,
    *,
    rows: int | None,
    nbytes: int,
    ahead: int,
    in_order: bool,
    workers: int,
    task: Any,
    context: Any,
    run: Callable[[Order], OrderDone] | None = None,
    assigned_orders: bool = False,
    shared: SharedClient | None = None,
    agent: bool = False,
) -> InlineHost | ProcessHost:
    """The host of a session. ``run``: what runs orders in the job itself, where there are no workers. ``agent``:
    there is a worker more, which has orders made elsewhere."""
    directory: Catalogue = parts.directory
    if shared is not None:
        directory = SharedDirectory(shared, dict(parts.directory.budgets))
    coordinator = Coordinator(directory, rows_per_order=rows, in_order=in_order)
    slots = SlotPool(parts.arena, nbytes, keep=ahead + 1, board=parts.board)
    host: InlineHost | ProcessHost
    if run is not None:
        host = InlineHost(parts.arena, parts.board, coordinator, slots, run, shared)
        host.cache = parts.cache
        return host
    host = ProcessHost(
        parts.arena,
        parts.board,
        coordinator,
        slots,
        ahead=ahead,
        task=settled(task, workers),
        workers=workers,
        context=context or multiprocessing.get_context(),
        assigned_orders=assigned_orders,
        shared=shared,
        agent=agent,
    )
    host.cache = parts.cache
    return host
