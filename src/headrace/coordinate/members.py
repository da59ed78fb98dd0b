"""Jobs that share: their ranks, and the steps of their epochs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.coordinate.costs import Took
from headrace.coordinate.protocol import Join
from headrace.coordinate.shelf import Shelf
from headrace.coordinate.universe import Dataset
from headrace.core.bits import Bits
from headrace.core.errors import ProtocolError
from headrace.core.forms import Form
from headrace.sampling import Geometry

Ids = NDArray[np.int64]

STEPS = 64
"""Steps that a rank remembers for the other ranks of its job, in case their host dies."""

_ON_THE_WAY = 2
"""Steps that a rank is given at most before it hears of the first, with some to spare: it asks for one at a time."""


@dataclass(eq=False)
class Epoch:
    """One epoch of a job: which step got which samples, and which rank has been given which steps."""

    number: int
    explicit: bool
    given: int
    """Samples given out before the first step that is drawn here."""
    base: int
    """The number of that step."""
    left: int
    """Samples that were left then."""
    drawn: int = 0
    """Steps drawn here."""
    steps: dict[int, Ids] = field(default_factory=dict)
    """Steps that some rank has yet to get, or to hear of."""
    cursors: dict[int, int] = field(default_factory=dict)
    """By rank: the step that it gets next."""
    awaited: set[int] = field(default_factory=set)
    """Ranks that have to say how far they are before the epoch goes on (after a host was lost)."""
    resumed: bytes | None = None
    """What was given out according to the state that ranks have loaded."""

    def taken_by_all(self, world_size: int) -> None:
        """Forget the steps that every rank has, and has heard of: it asks for the next ones."""
        if len(self.cursors) == world_size:
            low = min(self.cursors.values()) - _ON_THE_WAY
            for step in [step for step in self.steps if step < low]:
                del self.steps[step]


@dataclass(eq=False)
class Rank:
    """One process of a job, as it is connected now."""

    member: int
    token: str
    rank: int
    pid: int
    epoch: Epoch | None = None
    asks: deque[tuple[bytes, int]] = field(default_factory=deque)
    """Draws that it asked for and has not got: the samples where it draws for itself, and batches at most."""
    asked: float = 0.0
    """When it last asked."""
    dealt: int = 0
    """Batches that it was given since then."""
    before: int = 0
    """And from the ask before to that one."""
    pace: float = 1.0
    """Seconds from batch to batch, as it asked lately."""
    open: int = 0
    """Draws that it was given and whose rows are not all done with."""
    samples: int = 0
    hits: dict[Form, int] = field(default_factory=lambda: dict.fromkeys(Form, 0))
    rate: float = 0.0
    rated: tuple[float, int] = (0.0, 0)
    heard: float = 0.0

    def asks_again(self, now: float) -> None:
        """It asks, and so has used, or is about to use, what it was given."""
        if self.dealt:
            self.pace = (now - self.asked) / self.dealt
        self.asked, self.dealt, self.before = now, 0, self.dealt

    def count(self, forms: NDArray[np.uint8], now: float) -> None:
        """Samples are drawn for it, and enter in these forms."""
        self.samples += len(forms)
        for form, number in enumerate(np.bincount(forms, minlength=len(Form)).tolist()):
            self.hits[Form(form)] += number
        since, before = self.rated
        if now - since >= 2.0:
            self.rate = (self.samples - before) / (now - since) if since else 0.0
            self.rated = (now, self.samples)


class Job:
    """A training run: what it draws from, and whom it shares with."""

    def __init__(self, number: int, join: Join, dataset: Dataset) -> None:
        self.number = number
        self.name, self.group = join.name, join.group
        self.sampling, self.budget, self.split = join.sampling, join.budget, join.split
        self.dataset = dataset
        self.world_size = join.world_size
        self.fills, self.collates = join.fills, join.collates
        self.geometry = Geometry(join.batch_size, 0, join.world_size, join.drop_last)
        self.ranks: dict[int, Rank] = {}
        self.shelves: dict[Form, Shelf] = {}
        self.stale: Bits | None = None
        """Augmented samples on its shelf that this job must not get: it has had them, was promised them, or may have
        had them in an earlier epoch."""
        self.epoch: Epoch | None = None
        """The newest."""
        self.earlier: dict[int, Epoch] = {}
        """By number: epochs that some rank has yet to begin, although another has begun the next."""
        self.held: dict[int, tuple[str, Epoch]] = {}
        """By rank: the token of one whose connection was lost, and the epoch that it was in."""
        self.came: set[int] = set()
        """Ranks that have begun an epoch."""
        self.past: dict[int, list[Ids]] = {}
        """By number: steps of epochs that were drawn before all ranks left, in the dataset's own indices."""
        self.draws = 0
        self.took = Took()
        """Of its workers, what the pool has yet to learn of."""

    def begin(
        self, rank: int, number: int, *, explicit: bool, given: int, step: int, taken_over: bool
    ) -> bool:
        """A rank begins an epoch; returns whether the epoch is new here.

        Ranks of one job come to an epoch one after the other. One that begins the same epoch a second time
        starts it afresh, and the others follow it there. One that was drawn before all ranks left is not drawn
        again.
        """
        epoch = self.epoch
        if epoch is not None and epoch.number != number:
            epoch = self.earlier.get(number)
        new = epoch is None or rank in epoch.cursors or self.world_size == 1
        if new:
            last = self.epoch
            if last is not None and last.number < number and len(last.cursors) < self.world_size:
                self.earlier[last.number] = last
            awaited = set(range(self.world_size)) if taken_over else set()
            if last is not None and last.number < number:
                awaited |= last.awaited  # they may have begun this one, too, with the host that was lost
            epoch = self.epoch = Epoch(
                number, explicit, given, step, self.dataset.size - given, awaited=awaited
            )
            past = self.past.pop(number, [])
            if not taken_over:  # else the rank has had a part of it, and says which
                epoch.drawn = len(past)
                epoch.steps = {at: self.dataset.to_universe(ids) for at, ids in enumerate(past)}
        assert epoch is not None
        self.came.add(rank)
        epoch.cursors[rank] = step
        epoch.awaited.discard(rank)
        if len(epoch.cursors) == self.world_size:
            self.earlier.pop(epoch.number, None)
        self.ranks[rank].epoch = epoch
        return new

    def epoch_of(self, number: int) -> Epoch | None:
        """The epoch of a number, if it is not over here."""
        return (
            self.epoch if self.epoch is not None and self.epoch.number == number else self.earlier.get(number)
        )

    def comes_back(self, rank: int, number: int, step: int) -> bool:
        """Whether a rank tells of an epoch only because its connection was lost: it goes on where it was."""
        token, epoch = self.held.get(rank, ("", None))
        if epoch is None or token != self.ranks[rank].token or number > epoch.number:
            return False
        if number == epoch.number:  # else it tells the end of the one before, which is known here
            epoch.cursors[rank] = step
            self.ranks[rank].epoch = epoch
            del self.held[rank]
        return True

    def unfinished(self) -> dict[int, list[Ids]]:
        """What was drawn of epochs that some rank has yet to begin; see ``past``."""
        found = dict(self.past)
        for epoch in (*self.earlier.values(), self.epoch):
            if epoch is None or len(epoch.cursors) == self.world_size:
                continue
            # (of what began elsewhere not all is known here, and every rank is waited for)
            if epoch.drawn and not (epoch.base or epoch.given):
                found[epoch.number] = [self.dataset.to_local(epoch.steps[at]) for at in range(epoch.drawn)]
        return found

    def is_under_way(self, rank: int, number: int) -> bool:
        """Whether others have drawn of an epoch that this rank has not begun here."""
        epoch = self.epoch
        return bool(
            epoch is not None and epoch.number == number and epoch.drawn and rank not in epoch.cursors
        )

    @property
    def progress_limit(self) -> int:
        """Bytes of all that a rank can know of an epoch; see ``read_progress``."""
        # (where fewer samples are left than there are ranks, some repeat)
        step = min(self.geometry.batch_size * self.world_size, max(self.dataset.size, self.world_size))
        return 8 * (-(-self.dataset.size // 64) + STEPS * (2 + step))

    def share(self, epoch: Epoch, rank: int, step: int) -> Ids:
        """A rank's part of a step."""
        return self.geometry.part(epoch.steps[step], rank)

    def next_count(self, epoch: Epoch) -> int:
        """Samples of the next step to be drawn, over all ranks; 0 at the end of the epoch."""
        if epoch.drawn >= self.geometry.steps(epoch.left):
            return 0
        start, stop = self.geometry.cut(epoch.left, epoch.drawn)
        return stop - start

    def is_last(self, epoch: Epoch, step: int) -> bool:
        """Whether no step follows."""
        return step - epoch.base >= self.geometry.steps(epoch.left) - 1


def read_progress(data: bytes, size: int) -> tuple[Bits, dict[int, Ids]]:
    """What a rank knows of an epoch: the set of samples given out, and the last steps as a whole.

    Bits over the job's own indices, then for each step its number, its length and its samples.
    """
    words = -(-size // 64) * 8
    if len(data) < words or (len(data) - words) % 8:
        raise ProtocolError("a job's progress has the wrong length")
    try:
        seen = Bits.frombytes(size, data[:words])
    except ValueError as error:
        raise ProtocolError(f"a job's progress: {error}") from None
    rest = np.frombuffer(data, np.int64, offset=words)
    steps: dict[int, Ids] = {}
    at = 0
    while at < len(rest):
        number, count = (*rest[at : at + 2].tolist(), 0, 0)[:2]
        if at + 2 + count > len(rest):
            raise ProtocolError("a job's progress is cut off")
        if number < 0 or count < 1:
            raise ProtocolError(f"{count} samples of step {number} in a job's progress")
        steps[number] = rest[at + 2 : at + 2 + count]
        at += 2 + count
    return seen, steps


def write_progress(seen: Bits, steps: dict[int, Ids]) -> bytes:
    """See ``read_progress``."""
    parts = [seen.tobytes()]
    for number, ids in steps.items():
        parts += [np.array([number, len(ids)], np.int64).tobytes(), ids.astype(np.int64).tobytes()]
    return b"".join(parts)
