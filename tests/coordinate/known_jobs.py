"""Jobs over a real ``Commons`` that draw for themselves, in an order that the host knows."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from headrace.coordinate.events import Began
from headrace.coordinate.protocol import Begin, Known
from headrace.core.dues import FAR
from headrace.core.forms import Form
from headrace.core.layout import aligned
from headrace.core.sparse import PAGE
from headrace.sampling import Draw, Geometry, UniformEpoch
from tests.coordinate.jobs import BYTES, Ids, Member, World, prepared

EACH = aligned(BYTES[Form.DECODED], PAGE)
"""What a decoded sample takes of the budget."""


class KnownMember(Member):
    """A rank that draws for itself, and says what its order follows from."""

    def __init__(
        self,
        world: World,
        samples: Ids,
        *,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        says: bool = True,
        **terms: Any,
    ) -> None:
        """``ranks``: of its job. ``says``: whether it tells its order."""
        super().__init__(world, samples, sampling="uniform", **{"keys": ("", "d", ""), **terms})
        self.seed, self.says = seed, says
        self.geometry = Geometry(self.batch, rank, ranks, self.drop_last)
        self.coming: list[Draw] = []
        """The rest of its epoch."""

    def draws(self, epoch: int, position: int = 0) -> list[Draw]:
        """All batches of an epoch."""
        made = UniformEpoch(
            len(self.samples), self.geometry, seed=self.seed, epoch=epoch, shuffle=True, position=position
        )
        return list(iter(made.draw, None))

    def start(self, epoch: int, position: int = 0, *, lie: bool = False) -> None:
        """Begin an epoch. ``lie``: tell another order."""
        self.epoch = epoch
        self.got, self.steps_of_all, self.step, self.waiting_asks = [], {}, 0, 0
        self.over = self.last = False
        cut = self.geometry
        known = Known(
            self.seed + lie, True, cut.batch_size, cut.rank, cut.world_size, cut.drop_last, position
        )
        begin = Begin(epoch, explicit=True, known=known if self.says else None)
        self.world.tell(Began(self.member, begin, None))
        self.world.deliver()
        self.coming = self.draws(epoch, position)

    def draw(self, *, finish: bool = True) -> int:
        """Draw the next batch, of the next epoch if this one is over. Returns how many of it were not cached."""
        if not self.coming:
            self.start(self.epoch + 1)
        before = self.world.hits[Form.NONE]
        self.ask(self.coming.pop(0).indices)
        if finish:
            self.finish_all()
        return self.world.hits[Form.NONE] - before

    def finish_all(self) -> None:
        """Prepare whatever is under way."""
        for work in list(self.work.values()):
            self.finish(work, 0, len(work.forms), prepared)
        self.tell_ends()

    @property
    def universe(self) -> Ids:
        """The host's numbers of its samples."""
        dataset = self.world.state.ranks[self.member][0].dataset
        return dataset.to_universe(np.arange(len(self.samples)))

    def next_steps(self, size: int) -> Ids:
        """By a plain walk: how many steps from now on each sample of the universe is used; ``FAR``: not in this epoch
        and the next."""
        found = np.full(size, FAR, np.int64)
        universe = self.universe
        steps = self.geometry.steps(len(self.samples))
        for epoch, draws in ((self.epoch, self.coming), (self.epoch + 1, self.draws(self.epoch + 1))):
            first = (epoch - self.epoch + 1) * steps - len(draws)
            for step, drawn in enumerate(draws):
                ids = universe[drawn.indices]
                found[ids] = np.minimum(found[ids], first + step)
        return np.where(found == FAR, FAR, found + self.epoch * steps)


def trace(members: list[KnownMember], epochs: int, speeds: list[int]) -> list[int]:
    """Whose turn it is, as often as its speed says: as many turns as there are in so many epochs of all."""
    done = [0.0] * len(members)
    turns = []
    for _ in range(epochs * sum(len(member.draws(0)) for member in members)):
        turns.append(min(range(len(members)), key=lambda at: done[at]))
        done[turns[-1]] += 1 / speeds[turns[-1]]
    return turns


def least_misses(uses: list[Ids], counted: int, room: int) -> int:
    """Belady's: samples of the first batches that have to be prepared, if what is used last goes first."""
    later: dict[int, list[int]] = defaultdict(list)
    for at, ids in enumerate(uses):
        for sample in ids.tolist():
            later[sample].append(at)
    for times in later.values():
        times.reverse()
    cached: dict[int, int] = {}
    misses = 0
    for ids in uses[:counted]:
        for sample in ids.tolist():
            later[sample].pop()
            misses += sample not in cached
            cached[sample] = later[sample][-1] if later[sample] else FAR
        while len(cached) > room:
            del cached[max(cached, key=cached.__getitem__)]
    return misses
