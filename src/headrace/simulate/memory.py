"""The memory of machines for encoded samples, where the order is known: what is needed last goes, and what is needed
soonest is fetched ahead while storage has time. What is kept and fetched is decided by the product's own rules.

Machines that know of each other (``peers``) keep each sample once: who needs one that another has takes it over from
there. Otherwise each machine looks after its own ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.planning import Ahead, most_ahead_of_need
from headrace.sampling import Foresight, KnownOrder, epochs_worth_knowing
from headrace.simulate.clock import Call
from headrace.simulate.kept import NOBODY, Kept

Ids = NDArray[np.int64]

AT_ONCE = 32
"""Samples that are fetched ahead at a time, in each of so many requests."""
REQUESTS = 4


@dataclass
class Reads:
    """What became of the samples that a machine's workers asked for, and what it read."""

    asked: float = 0
    found: float = 0
    """Of those: in the machine's memory when they were asked for."""
    stored: float = 0
    """Read from storage, for somebody or ahead."""
    taken_over: float = 0
    """Taken over from another machine."""
    peer_found: float = 0
    """Of those that were asked for: in another machine's memory then."""


Hurry = Callable[[], None]


class Machine(Protocol):
    """What moves bytes."""

    reads: Reads

    def bring(self, stored: int, peers: int, at_once: int, urgent: bool, call: Call) -> Hurry | None:
        """Bring so many samples from storage, and so many from other machines; then ``call``.

        What it returns is called when somebody waits for what is not urgent.
        """
        ...


@dataclass
class _Place:
    """One machine's part in it."""

    machine: Machine
    ranks: Sequence[int]
    ahead: Ahead
    now: int = -1
    """The step that its workers are at."""
    requests: int = 0
    waiting: dict[int, list[Call]] = field(default_factory=dict)
    """By sample that is on its way: who waits for it."""
    hurries: dict[int, Hurry] = field(default_factory=dict)
    """By sample that is on its way: how to make it come sooner."""


class Memory:
    """The memories of machines that run one job: all that know of each other."""

    def __init__(
        self, known: KnownOrder, machines: Sequence[tuple[Machine, Sequence[int]]], room: int, *, ahead: bool
    ) -> None:
        """``machines``: each with its ranks of the job. ``room``: samples of each memory. ``ahead``: samples are
        fetched ahead, too."""
        ranks = [rank for _, some in machines for rank in some]
        self._foresight = Foresight(known, ranks)
        share = len(ranks) / known.geometry.world_size
        self._foresight.epochs = epochs_worth_knowing(share, min(1.0, room * len(machines) / known.size))
        self._kept = Kept(self._foresight.next_uses.due, len(machines), room, self._foresight.grain)
        step = known.geometry.batch_size
        self._places = [
            _Place(machine, some, Ahead(most_ahead_of_need(room, step * len(some)) if ahead else 0))
            for machine, some in machines
        ]
        self._known_to = -1

    @property
    def evictions(self) -> int:
        """Samples that had to go."""
        return sum(self._kept.evictions)

    def fetch(self, place: int, epoch: int, step: int, samples: Ids, at_once: int, call: Call) -> None:
        """A worker asks for samples of a step; ``call`` when all are there."""
        self._begin(epoch)
        here = self._places[place]
        reads, kept = here.machine.reads, self._kept
        homes = kept.home[samples]
        mine = homes == place
        late = [sample for sample in samples[mine].tolist() if kept.is_coming(sample)]
        there, nowhere = samples[~mine & (homes != NOBODY)], samples[homes == NOBODY]
        reads.asked += len(samples)
        reads.found += int(np.count_nonzero(mine)) - len(late)
        reads.stored += len(nowhere)
        reads.taken_over += len(there)
        reads.peer_found += len(there)
        self._foresight.next_uses.use(epoch, samples)
        here.ahead.used(samples.tolist())
        kept.needed_otherwise(samples)
        for sample in there.tolist():
            kept.keep(place, sample)
        for sample in nowhere.tolist():
            kept.keep(place, sample)
        left = len(late) + (1 if len(there) or len(nowhere) else 0)
        here.now = max(here.now, self._foresight.when(epoch, step))
        if not left:
            call()
        else:

            def done() -> None:
                nonlocal left
                left -= 1
                if not left:
                    call()

            for sample in late:
                here.waiting[sample].append(done)
                hurry = here.hurries.get(sample)
                if hurry is not None:
                    hurry()
            if len(there) or len(nowhere):
                here.machine.bring(len(nowhere), len(there), at_once, True, done)
        self._fetch_ahead(place)

    def _begin(self, epoch: int) -> None:
        """See to it that this epoch and the next are known."""
        foresight = self._foresight
        if foresight.epoch is None or epoch > foresight.epoch:
            changed = foresight.begin(epoch)
            self._kept.needed_otherwise(changed)
            for number in range(max(epoch, self._known_to + 1), epoch + 2):
                for place in self._places:
                    place.ahead.extend(foresight.uses(number, place.ranks))
            self._known_to = epoch + 1

    def _fetch_ahead(self, place: int) -> None:
        """Fetch what is needed soonest, as long as it is sooner than what has to go for it."""
        here, kept = self._places[place], self._kept
        while here.requests < REQUESTS:
            chosen = here.ahead.choose(AT_ONCE, here.now, lambda ids: kept.home[ids] == place)
            at_peers = kept.home[chosen] != NOBODY
            taken = np.array(
                [
                    not kept.is_coming(sample) and kept.keep(place, sample, coming=True)
                    for sample in chosen.tolist()
                ],
                np.bool_,
            )
            here.ahead.refused(chosen[~taken].tolist())
            if not taken.any():
                return
            coming, peers = chosen[taken], int(np.count_nonzero(at_peers[taken]))
            here.requests += 1
            here.waiting.update((sample, []) for sample in coming.tolist())
            here.machine.reads.stored += len(coming) - peers
            here.machine.reads.taken_over += peers
            came = partial(self._came, place, coming)
            hurry = here.machine.bring(len(coming) - peers, peers, AT_ONCE, False, came)
            if hurry is not None:
                here.hurries.update(dict.fromkeys(coming.tolist(), hurry))

    def _came(self, place: int, samples: Ids) -> None:
        here = self._places[place]
        here.requests -= 1
        self._kept.came(samples)
        for sample in samples.tolist():
            here.hurries.pop(sample, None)
            for call in here.waiting.pop(sample):
                call()
        self._fetch_ahead(place)
