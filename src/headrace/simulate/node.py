"""A simulated machine: its processors and links, and its shared host, which is a real one on virtual time.

Each machine has a host of its own with a cache of its own, as in the product. ``Node.fetch`` reads files for workers:
through a page cache, through a memory that knows what is needed soonest (``Memory``), or by way of a cluster
(``Pool``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.commons import Commons
from headrace.coordinate.events import (
    Asked,
    Began,
    Buried,
    Came,
    Done,
    Event,
    GiveBack,
    Gone,
    Ticked,
    WasIdle,
)
from headrace.coordinate.messages import Order
from headrace.coordinate.protocol import Ask, Begin, Drawn, Fill, Finished, Join, Refused, Reply, Update
from headrace.coordinate.universe import Universe
from headrace.core import random as rnd
from headrace.core.errors import OptionError
from headrace.simulate.clock import Call, Clock
from headrace.simulate.memory import Memory, Reads
from headrace.simulate.pages import RecentPages
from headrace.simulate.pool import Pool
from headrace.simulate.resources import Shared, Thread
from headrace.simulate.scenario import Costs
from headrace.simulate.tally import Paid, Use

TICK = 0.1
"""Seconds between a host's looks at those who wait."""
_SPAN = 1 << 46
"""Addresses of a host's cache: plenty, as they cost nothing."""


class Member(Protocol):
    """A rank, as its host sees it."""

    def hear(self, reply: Reply) -> None:
        """The host has said something."""
        ...


class Node:
    """One machine."""

    def __init__(
        self,
        number: int,
        clock: Clock,
        costs: Costs,
        *,
        cpus: int,
        speed: float,
        budget: int,
        pages: int,
        network: Shared | None,
        out: Shared | None,
        delay: float,
        megabyte: float,
        storage: Shared | None,
        latency: float,
        universe: Universe,
        seed: int,
        sample_bytes: int,
    ) -> None:
        """``pages``: encoded samples that the page cache holds, each of ``sample_bytes`` on average. ``out``: the
        link to other machines, ``delay``: of a message there, ``megabyte``: processor seconds for as much."""
        self.number, self.clock, self.budget = number, clock, budget
        self.processors = Shared(clock, cpus * speed, speed)
        self.cpus, self.speed, self.costs = cpus, speed, costs
        self.network, self.storage, self._latency = network, storage, latency
        self.out, self.delay, self._megabyte = out, delay, megabyte
        self.host = Thread(clock, self.processors)
        self.commons = Commons(
            instance=1, nonce=rnd.key(seed, number), span=_SPAN, universe=universe, cpus=cpus
        )
        self.paid = Paid()
        self.workers = 1
        """Processes of all jobs."""
        self.reads = Reads()
        self.memory: Memory | None = None
        self._place = 0
        self.pool: Pool | None = None
        self._others: Sequence[Node] = ()
        """All machines of the cluster, by their numbers."""
        self._pages = RecentPages(pages)
        self._sample_bytes = sample_bytes
        self._members: dict[int, Member] = {}
        self._opened = 0
        self._ticking = False

    # -- the shared host ---------------------------------------------------------------------------------------

    def join(self, member: Member, join: Join) -> int:
        """A rank comes; its number."""
        self._opened += 1
        came = Came(self._opened, f"rank {self._opened}", 0, join)
        ((_, answer),) = self.commons.handle(came, self.clock.now)
        if isinstance(answer, Refused):
            raise OptionError(f"{join.name}: {answer.reason}")
        if not self._ticking:
            self._ticking = True
            self.clock.after(TICK, self._tick)
        self._members[self._opened] = member
        return self._opened

    def leave(self, number: int) -> None:
        """A rank goes, and all its workers with it."""
        del self._members[number]
        self._handle(Gone(number))
        self._handle(Buried(number))

    def ask(self, number: int, request: Begin | Ask, rows: int) -> None:
        """A rank begins an epoch, or asks for a draw of so many rows."""
        if isinstance(request, Begin):
            self.host.do(0.0, self._call, Began(number, request))
        else:
            asked = Asked(number, request.indices, request.most, request.over, request.spent)
            self.paid.draw += 1
            self.paid.row += rows
            seconds = self.costs.draw + rows * self.costs.row
            self.host.do(seconds, self._call, asked)

    def report(self, number: int, finished: Finished) -> None:
        """A worker of a rank is done with an order."""
        stored = len(finished.published) // 32
        self.paid.report += 1
        self.paid.store += stored
        seconds = self.costs.report + stored * self.costs.store
        self.host.do(seconds, self._call, Done(number, finished))

    def _call(self, event: Began | Asked | Done) -> None:
        if event.member in self._members:  # what somebody said who has left since does not matter any more
            self._handle(event)

    def idle(self, number: int, fill: Callable[[Order], None]) -> None:
        """A worker of a rank has nothing to do; ``fill`` takes what the host may have for it."""
        self.host.do(0.0, self._was_idle, number, fill)

    def _was_idle(self, number: int, fill: Callable[[Order], None]) -> None:
        if number in self._members:
            for _, answer in self.commons.handle(WasIdle(number), self.clock.now):
                assert isinstance(answer, Fill)
                fill(answer.order)

    def _handle(self, event: Event) -> None:
        for number, reply in self.commons.handle(event, self.clock.now):
            assert not isinstance(reply, GiveBack)
            if isinstance(reply, Update):
                self.paid.wait += len(reply.forms)
                self.host.do(len(reply.forms) * self.costs.wait, _nothing)
            elif isinstance(reply, Drawn) and reply.stretch:
                more = sum(reply.stretch[1:])  # (of the others it was not known how many they are)
                self.paid.row += more
                self.host.do(more * self.costs.row, _nothing)
            member = self._members.get(number)
            if member is not None:
                member.hear(reply)

    def _tick(self) -> None:
        self._ticking = bool(self._members)
        if not self._members:
            return
        self._handle(Ticked(self.workers))
        self.clock.after(TICK, self._tick)

    # -- storage -----------------------------------------------------------------------------------------------

    def fetch(
        self,
        order: Order,
        samples: NDArray[np.int64],
        nbytes: float,
        at_once: int,
        call: Call,
        *arguments: Any,
    ) -> None:
        """Read samples of an order, of so many bytes in all, ``at_once`` at a time; then ``call``."""
        if self.pool is not None:
            self.pool.fetch(self.number, samples, nbytes, partial(call, *arguments))
            return
        if self.memory is not None:
            place, memory = self._place, self.memory
            memory.fetch(place, order.epoch, order.step, samples, at_once, partial(call, *arguments))
            return
        missing = self._pages.read(samples)
        self.reads.asked += len(samples)
        self.reads.found += len(samples) - missing
        self.reads.stored += missing
        if not missing:
            call(*arguments)
            return
        self._bring(missing, nbytes * missing / len(samples), at_once, False, call, arguments)

    def share_memory(self, memory: Memory, place: int) -> None:
        """Files are kept by a memory of which this machine is the ``place``-th part."""
        self.memory, self._place = memory, place

    def join_cluster(self, others: Sequence[Node], pool: Pool | None) -> None:
        """There are other machines, to which there are links; samples come by way of a pool, if there is one."""
        self._others, self.pool = others, pool

    def read_stored(self, count: int, nbytes: float, at_once: int, call: Call) -> None:
        """See ``Server``."""
        self._bring(count, nbytes, at_once, False, call, ())

    def pass_on(self, to: int, call: Call, *arguments: Any) -> None:
        """See ``Server``."""
        delay = max(self.delay, self._others[to].delay)
        if delay > 0:
            self.clock.after(delay, call, *arguments)
        else:
            call(*arguments)

    def send(self, to: int, nbytes: float, call: Call, *, idle: bool = False) -> None:
        """See ``Server``. Both ends have work with it. Who sends has slept until it was asked, unless it is one that
        works when nobody else does (``idle``)."""
        other, work = self._others[to], self._megabyte * nbytes / 1e6
        links = [link for link in (self.out, other.network) if link is not None]
        received = (other.processors.add, work, call) if work > 0 else (call,)
        moved = partial(self._transfer, nbytes, links, False, received[0], received[1:])
        if work > 0:
            (self.processors.add_idle if idle else self.processors.add_urgent)(work, self.pass_on, to, moved)
        else:
            self.pass_on(to, moved)

    def bring(self, stored: int, peers: int, at_once: int, urgent: bool, call: Call) -> None:
        """See ``Machine``. What comes from other machines takes the network alone."""
        left = bool(stored) + bool(peers)

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                call()

        if stored:
            self._bring(stored, stored * self._sample_bytes, at_once, urgent, done, ())
        if peers:
            links = [] if self.network is None else [self.network]
            self._transfer(peers * self._sample_bytes, links, urgent, done, ())

    def _bring(
        self, count: int, nbytes: float, at_once: int, urgent: bool, call: Call, arguments: tuple[Any, ...]
    ) -> None:
        """Bring so many samples from storage."""
        links = [link for link in (self.storage, self.network) if link is not None]
        wait = self._latency * -(-count // at_once)
        if wait > 0:
            self.clock.after(wait, self._transfer, nbytes, links, urgent, call, arguments)
        else:
            self._transfer(nbytes, links, urgent, call, arguments)

    @staticmethod
    def _transfer(
        nbytes: float, links: list[Shared], urgent: bool, call: Call, arguments: tuple[Any, ...]
    ) -> None:
        """Bytes come through all links at a time, and are there when all are done with them."""
        if not links:
            call(*arguments)
            return
        left = len(links)

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                call(*arguments)

        for link in links:
            (link.add_urgent if urgent else link.add)(nbytes, done)

    def use(self) -> Use:
        """How much of it was used by now."""
        return Use(
            self.processors.used(),
            self.host.spent,
            self.network.used() if self.network is not None else 0.0,
            self.storage.used() if self.storage is not None else 0.0,
            self.commons.state.pool.evictions,
            self.reads.asked,
            self.reads.found,
            self.reads.stored,
            self.reads.taken_over,
            self.reads.peer_found,
            replace(self.paid),
        )


def _nothing() -> None:
    """What a host did that nobody waits for."""
