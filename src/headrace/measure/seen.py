"""What a loader saw of a recipe while a job trained with it: means and single points, where a profile has tables."""

from __future__ import annotations

import msgspec

from headrace.planning import Means


class Cost(msgspec.Struct, frozen=True):
    """What a stage cost, for one sample."""

    seconds: float
    """That a thread took over it. Waits count: for a CPU that others had, for a lock, for whatever user code does."""
    cpu: float
    """Of them, seconds of processor time."""

    def rate(self, means: Means, *, waits: bool) -> float:
        """Samples per second by all hands. ``waits``: there is user code, so that not all waits are for a CPU.

        Headrace's own steps never wait for anything but a CPU. If they did, others were at work, who may be gone at
        the next start; processor time tells what the machine can do.
        """
        alone = max(self.seconds, self.cpu) if waits else self.cpu
        return min(means.hands / max(alone, 1e-9), means.cpus / max(self.cpu, 1e-9))


class Starved(msgspec.Struct, frozen=True):
    """Storage, while preparing waited for it: all that it gave to a loader."""

    bytes: float
    """Per second."""
    reads: float
    """Under way at a time, on average."""
    latency: float
    """Seconds that one took."""
    at: float
    """When, in seconds since 1970: most runs do not wait for storage and leave this as it was."""


class Seen(msgspec.Struct, frozen=True):
    """What the last loaders saw. None: not seen, or not enough of it."""

    at: float
    """When, in seconds since 1970."""
    encoded: float | None = None
    """Mean bytes of a sample."""
    decoded: float | None = None
    augmented: float | None = None
    decode: Cost | None = None
    """From encoded to decoded, by a loader that caches decoded samples."""
    augment: Cost | None = None
    """From decoded to finished row, by such a loader."""
    uncached: Cost | None = None
    """From encoded to finished row, by one that does not."""
    fetch: float | None = None
    """Seconds of processor time for fetching one."""
    waits: bool = False
    """There is user code: seconds of stages count, not only processor time."""
    loop: float | None = None
    """CPUs that the training process itself kept busy."""
    supply: float | None = None
    """Bytes per second that fetching could get, from wherever they came: the system's memory may have held files."""
    fetchers: int = 1
    """Threads that fetched when that was so."""
    storage: Starved | None = None

    def after(self, before: Seen | None) -> Seen:
        """This, and what was seen before where this has nothing."""
        if before is None:
            return self
        missing = [name for name in _PARTS if getattr(self, name) is None]
        older = {name: getattr(before, name) for name in missing}
        if "supply" in missing:
            older["fetchers"] = before.fetchers
        return msgspec.structs.replace(self, **older)

    def stages(self, means: Means, *, cached: bool) -> tuple[float, float] | None:
        """Samples per second by all hands: prepared from encoded ones, and only augmented."""
        means = Means(max(0.5, means.cpus - (self.loop or 0.0)), means.hands, means.fetchers)
        if not cached:
            if self.uncached is None:
                return None
            rate = self.uncached.rate(means, waits=self.waits)
            return rate, rate
        if self.decode is None or self.augment is None:
            return None
        whole = Cost(self.decode.seconds + self.augment.seconds, self.decode.cpu + self.augment.cpu)
        return whole.rate(means, waits=self.waits), self.augment.rate(means, waits=self.waits)


_PARTS = (
    "encoded",
    "decoded",
    "augmented",
    "decode",
    "augment",
    "uncached",
    "fetch",
    "loop",
    "supply",
    "storage",
)
