"""What preparing a sample takes, as workers report it: running means, from the reports alone."""

from __future__ import annotations

from headrace.core.forms import Form
from headrace.planning import Spent

_WINDOW = 16
"""Of so many times what is enough, the older half counts half."""
_FAR = 8.0
"""A report may say so many times the mean: one of a worker that was stopped for a minute is no measure."""
_TOGETHER = 256
"""Rows whose reports are taken together."""
_ENOUGH = 256
"""Samples after which a mean is believed."""
_MOST = 60.0
"""Seconds of a stage for one sample, whatever is reported."""
_LEAST = 1e-3
"""Seconds that are never far from the mean."""
_SOME = 1e-6
"""Seconds that fetching and decoding take at least: so no form saves nothing, and decoded ones save more than encoded
ones."""
_ORDER, COPY = 2e-4, 3e-6
"""Seconds of a processor that preparing takes for an order, and for each of its rows that is copied, from others or
for them, however few are augmented."""


class RunningMean:
    """Seconds for one of something: a sample, a byte. What is old counts less and less."""

    __slots__ = ("_enough", "_least", "_most", "count", "seconds")

    def __init__(self, enough: int, most: float, least: float) -> None:
        """``enough``: of so many it is known. ``most``: no more is believed; ``least``: that much always is."""
        self._enough, self._most, self._least = enough, most, least
        self.seconds = self.count = 0.0

    @property
    def known(self) -> bool:
        """Whether there were enough to tell."""
        return self.count >= self._enough

    @property
    def mean(self) -> float:
        """Seconds for one."""
        return self.seconds / self.count if self.count else 0.0

    def add(self, seconds: float, count: float, most: float) -> None:
        """So many took so long, as somebody says; no more than ``most`` of them count."""
        if count <= 0 or most <= 0:
            return
        limit = self._most
        if self.known:
            limit = min(limit, _FAR * self.mean + self._least)
        each = seconds / count
        if not each <= limit:
            each = limit
        count = min(count, most)
        self.seconds += each * count
        self.count += count
        if self.count > _WINDOW * self._enough:
            self.seconds /= 2
            self.count /= 2


class Took:
    """What workers of one job took lately: sums over a few reports, as there are many of them."""

    __slots__ = ("augment_cpu", "rows", "stages")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.rows = 0
        self.stages = [0.0] * 6
        """Seconds and samples of fetching, decoding and augmenting."""
        self.augment_cpu = 0.0
        """Seconds of augmenting for which a processor was busy with the samples themselves."""

    def add(self, spent: Spent, rows: int) -> bool:
        """A report about so many rows; whether there is enough to learn from."""
        stages = self.stages
        stages[0] += spent.fetch
        stages[1] += spent.fetched
        stages[2] += spent.decode
        stages[3] += spent.decoded
        stages[4] += spent.augment
        stages[5] += spent.prepared
        both = spent.decode + spent.augment
        # (of both together it is known how long a processor was busy)
        busy = spent.augment * min(1.0, spent.cpu / both) if both and spent.cpu else spent.augment
        self.augment_cpu += max(0.0, busy - _ORDER - COPY * rows)
        self.rows += rows
        return self.rows >= _TOGETHER


class Costs:
    """What each stage takes for one sample."""

    __slots__ = ("augment", "augment_cpu", "decode", "fetch")

    def __init__(self) -> None:
        self.fetch, self.decode, self.augment = (RunningMean(_ENOUGH, _MOST, _LEAST) for _ in range(3))
        self.augment_cpu = RunningMean(_ENOUGH, _MOST, _LEAST)
        """Without what augmenting waited for a processor: how many others there are says nothing of a sample."""

    @property
    def known(self) -> bool:
        """Whether all stages were seen often enough."""
        return self.fetch.known and self.decode.known and self.augment.known

    def add(self, took: Took) -> None:
        """Count what was reported."""
        for at, mean in enumerate((self.fetch, self.decode, self.augment)):
            mean.add(took.stages[2 * at], took.stages[2 * at + 1], took.rows)
        self.augment_cpu.add(took.augment_cpu, took.stages[5], took.rows)

    def to(self, form: Form) -> float:
        """Seconds to prepare a sample from storage up to a form. The further, the longer."""
        seconds = max(_SOME, self.fetch.mean)
        if form >= Form.DECODED:
            seconds += max(_SOME, self.decode.mean)
        if form >= Form.AUGMENTED:
            seconds += self.augment.mean
        return seconds
