"""The memory of a cluster: encoded samples, each on the machine that it is placed on, for all machines.

Where a sample lies and whether it is asked for there or read from storage is decided by the product's own rules
(``owners``, ``Ways``). What servers do with a request is written anew, to the rules of ``cluster/fetching.py`` and
``cluster/memory.py``: a sample is read once for all who wait, it stays as long as there is room, and machines read
ahead of need in the order of use, of which a part waits for that use alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.planning.peers import STORAGE, Ways
from headrace.planning.rendezvous import key_of, owners
from headrace.simulate.clock import Call, Clock
from headrace.simulate.memory import Reads
from headrace.simulate.scenario import Cluster

Ids = NDArray[np.int64]

_AHEAD = 16
"""One part in so many of a machine's memory is for what waits for its use."""
_PIECE, _AT_ONCE = 32, 16
"""Samples that are read ahead together, and of these at a time."""
_PAUSE = 0.02
"""Seconds after which it is looked again whether there is room."""


class Server(Protocol):
    """A machine, as far as it holds samples."""

    number: int
    reads: Reads

    def read_stored(self, count: int, nbytes: float, at_once: int, call: Call) -> None:
        """Read so many samples from storage; then ``call``."""
        ...

    def send(self, to: int, nbytes: float, call: Call) -> None:
        """Send bytes to another machine; then ``call``."""
        ...

    def pass_on(self, to: int, call: Call, *arguments: object) -> None:
        """Send a message to another machine, whose ``call`` it is."""
        ...


@dataclass
class _Part:
    """What one machine holds."""

    server: Server
    room: int
    """Samples that may stay, and those that may wait for their use."""
    spare: int
    held: NDArray[np.bool_]
    asked: NDArray[np.bool_]
    """Those that somebody has asked for in the epoch that is read ahead."""
    ways: Ways
    count: int = 0
    waiting: set[int] = field(default_factory=set)
    pending: dict[int, list[Call]] = field(default_factory=dict)
    """Samples that are being read, and who waits for them."""
    ahead: _Ahead | None = None

    @property
    def free(self) -> int:
        """Samples for which there is room."""
        return self.room - self.count + max(0, self.spare - len(self.waiting))

    def there(self, samples: list[int]) -> int:
        """How many of these lie there."""
        return sum(bool(self.held[one]) or one in self.waiting for one in samples)


@dataclass
class _Ahead:
    """What a machine reads ahead of need."""

    order: Ids
    at: int = 0
    busy: bool = False


class Pool:
    """The memory of all machines."""

    def __init__(
        self,
        clock: Clock,
        rules: Cluster,
        servers: Sequence[Server],
        budgets: Sequence[int],
        samples: int,
        each: int,
    ) -> None:
        """``budgets``: bytes of each machine. ``each``: bytes of a sample, on average."""
        self._clock, self._rules, self._each = clock, rules, each
        self._owner: Ids | None = None
        if rules.placement == "rendezvous":
            names = [key_of(f"node {server.number}") for server in servers]
            self._owner = owners(np.arange(samples), key_of("samples"), names, budgets).astype(np.int64)
        one = np.zeros(samples, np.bool_), np.zeros(samples, np.bool_)
        self._parts = []
        for server, budget in zip(servers, budgets, strict=True):
            # (of a sample that lies on one machine, it is known which that is)
            held, asked = one if self._owner is not None else (np.zeros(samples, np.bool_) for _ in range(2))
            spare = budget // _AHEAD
            room = (budget - spare) // each
            self._parts.append(_Part(server, room, max(1, spare // each), held, asked, Ways()))

    def begin(self, orders: Callable[[int], Ids]) -> None:
        """A job begins an epoch. ``orders``: what is used on a machine, or on all of them (-1), in that order."""
        everything = orders(-1).astype(np.int64) if self._owner is not None else None
        for place, part in enumerate(self._parts):
            if everything is not None and self._owner is not None:
                mine = everything[self._owner[everything] == place]
            else:
                mine = orders(place).astype(np.int64)
            part.asked[mine] = False
            part.waiting.clear()
            if self._rules.preload:
                part.ahead = _Ahead(mine)
                self._read_ahead(part)

    # -- who asks --------------------------------------------------------------------------------------------------

    def fetch(self, place: int, samples: Ids, nbytes: float, call: Call) -> None:
        """A machine's workers need samples of so many bytes in all; ``call`` when all are there."""
        each, here, now = nbytes / len(samples), self._parts[place], self._clock.now
        here.server.reads.asked += len(samples)
        by_node: list[tuple[int, list[int]]] = []
        direct: list[int] = []
        for owner, group in self._groups(place, samples).items():
            size = each * len(group)
            left_alone = self._rules.peers == "measured" and not here.ways.by_node(str(owner), size, now=now)
            if owner != place and left_alone:
                direct += group
            else:
                by_node.append((owner, group))
        left = len(by_node) + bool(direct)

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                call()

        for owner, group in by_node:
            if owner == place:
                self._own(here, group, done)
            else:
                message = partial(self._serve, owner, place, group, each, now, done)
                here.server.pass_on(owner, message)
        if direct:
            here.server.reads.stored += len(direct)
            measured = partial(self._measured, here, STORAGE, len(direct), each, now, len(direct), done)
            here.server.read_stored(len(direct), each * len(direct), _PIECE, measured)

    def _groups(self, place: int, samples: Ids) -> dict[int, list[int]]:
        """Samples by the machine that they lie on."""
        if self._owner is None:
            return {place: samples.tolist()}
        found: dict[int, list[int]] = {}
        for sample, owner in zip(samples.tolist(), self._owner[samples].tolist(), strict=True):
            found.setdefault(owner, []).append(sample)
        return found

    def _own(self, here: _Part, group: list[int], done: Call) -> None:
        """What lies on the machine itself goes over no link."""
        here.server.reads.found += here.there(group)
        self._collect(here, group, self._each, done)

    def _serve(self, owner: int, place: int, group: list[int], each: float, begun: float, done: Call) -> None:
        """A machine is asked by another."""
        part, here = self._parts[owner], self._parts[place]
        here.server.reads.taken_over += len(group)
        kept = part.there(group)
        here.server.reads.peer_found += kept
        measured = partial(self._measured, here, str(owner), len(group), each, begun, kept, done)
        self._collect(part, group, each, partial(part.server.send, place, each * len(group), measured))

    def _measured(
        self, here: _Part, way: str, count: int, each: float, begun: float, kept: int, done: Call
    ) -> None:
        if self._rules.peers == "measured":
            now = self._clock.now
            here.ways.read(way, count, int(each * count), now - begun, now=now, kept=kept)
        done()

    # -- who has it ------------------------------------------------------------------------------------------------

    def _collect(self, part: _Part, group: list[int], each: float, call: Call) -> None:
        """Have samples together on their machine; then ``call``."""
        missing: list[int] = []
        left = 1

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                call()

        for sample in group:
            part.asked[sample] = True
            if part.held[sample]:
                continue
            if sample in part.waiting:
                part.waiting.remove(sample)
            elif sample in part.pending:
                left += 1
                part.pending[sample].append(done)
            else:
                missing.append(sample)
        if missing:
            left += 1
            self._read(part, missing, each, _PIECE, partial(self._came, part, missing, False, done))
        done()

    def _read(self, part: _Part, samples: list[int], each: float, at_once: int, call: Call) -> None:
        part.pending.update((sample, []) for sample in samples)
        part.server.reads.stored += len(samples)
        now, count = self._clock.now, len(samples)
        measured = partial(self._measured, part, STORAGE, count, each, now, count, call)
        part.server.read_stored(count, each * count, at_once, measured)

    def _came(self, part: _Part, samples: list[int], ahead: bool, call: Call) -> None:
        for sample in samples:
            if part.count < part.room and not part.held[sample]:
                part.held[sample] = True
                part.count += 1
            elif ahead and not part.asked[sample]:
                part.waiting.add(sample)
            for waits in part.pending.pop(sample):
                waits()
        call()

    def _read_ahead(self, part: _Part) -> None:
        """Go on with what is used next, as far as there is room."""
        ahead = part.ahead
        if ahead is None or ahead.busy:
            return
        while ahead.at < len(ahead.order):
            room = min(_PIECE, part.free)
            if room <= 0:
                ahead.busy = True
                self._clock.after(_PAUSE, self._go_on, part, ahead)
                return
            piece = ahead.order[ahead.at : ahead.at + room]
            ahead.at += len(piece)
            piece = piece[~(part.held[piece] | part.asked[piece])]
            wanted = [one for one in piece.tolist() if one not in part.pending and one not in part.waiting]
            if wanted:
                ahead.busy = True
                came = partial(self._came, part, wanted, True, partial(self._go_on, part, ahead))
                self._read(part, wanted, self._each, _AT_ONCE, came)
                return

    def _go_on(self, part: _Part, ahead: _Ahead) -> None:
        ahead.busy = False
        if part.ahead is ahead:
            self._read_ahead(part)
