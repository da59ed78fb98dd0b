"""How a shared cache is split while jobs come and go: what their workers report goes in, parts come out.

Decoded and augmented samples divide their part by what pays (``eviction``). The question here is how much of the
cache they leave to encoded ones, and that depends on storage, on the processors, and on how many jobs there are.
"""

from __future__ import annotations

import math

from headrace.coordinate.parts import Part
from headrace.core.forms import Form
from headrace.planning import LOOK_EVERY, Means, Planner, Spent, Terms

_SMOOTH = 0.7
"""What the past counts in the mean of augmented samples."""


class SharedSplit:
    """Looks now and then at what was reported, and says how large the encoded part is to be."""

    def __init__(self) -> None:
        self.cpus = 0.0
        """Processors of the machine; 0: nothing is planned."""
        self.workers = 1
        """Processes that fetch, of all jobs."""
        self.encoded = 0.0
        """The part of encoded samples. With 0, nothing is split: what pays is kept, whatever its form."""
        self._spent = Spent()
        self._delivered = 0
        self._since = -math.inf
        self._window = 0.0
        self._planner: Planner | None = None

    @property
    def terms(self) -> Terms | None:
        """What the present split rests on."""
        return self._planner.terms if self._planner is not None else None

    def add(self, spent: Spent) -> None:
        """A worker reports what some rows took."""
        self._spent.add(spent)

    def give(self, samples: int) -> None:
        """Samples were given to a job."""
        self._delivered += samples

    def is_due(self, now: float) -> bool:
        """Whether it is time to look."""
        if not self.cpus:
            return False
        if self._since == -math.inf:
            self._begin(now)
        return now - self._since >= LOOK_EVERY

    def _begin(self, now: float) -> None:
        self._since, self._spent, self._delivered = now, Spent(), 0

    def look(
        self,
        now: float,
        *,
        samples: int,
        budget: int,
        decoded: float,
        augmented: float,
        jobs: int,
        instances: float,
    ) -> bool:
        """Take in what was reported since the last look; whether the cache has to be split anew.

        ``samples``: of all datasets. ``decoded``, ``augmented``: mean bytes; 0: not known. ``jobs``: that share
        augmented samples. ``instances``: augmented samples that are cached.
        """
        seconds, spent = now - self._since, self._spent
        hands = (spent.decode + spent.augment + spent.wait_order + spent.wait_fetch) / seconds
        # Whether their loops waited, jobs do not say. What is prepared sooner than needed does no harm.
        measured = spent.measured(seconds=seconds, delivered=self._delivered, waited=seconds)
        self._window += (1 - _SMOOTH) * (instances - self._window) if self._window else instances
        self._begin(now)
        if not measured.prepared or not budget:
            return False
        if self._planner is None:
            self._planner = Planner(
                Terms.unknown(samples, budget), (self.encoded, 1.0 - self.encoded, 0.0), joint=True
            )
        plan = self._planner.look(
            measured,
            Means(self.cpus, max(1, round(hands)), max(1, self.workers)),
            decoded=decoded,
            augmented=augmented,
            samples=samples,
            cache=budget,
            jobs=jobs,
            window=self._window,
        )
        before, self.encoded = self.encoded, self.encoded if plan is None else plan.split[0]
        return self.encoded != before

    def parts(self, budget: int) -> dict[Part, int] | None:
        """The parts of a cache; None: it is not split."""
        if not self.encoded:
            return None
        encoded = int(budget * self.encoded)
        return {(Form.ENCODED,): encoded, (Form.DECODED, Form.AUGMENTED): budget - encoded}
