"""Does user code release the interpreter lock? Found out by measuring.

A probe thread sleeps for a moment and looks how much later than due it runs again. While other threads hold
the lock, it has to wait for it; while they run in code that released it, it does not. Waiting for a CPU, on a busy
machine, is another matter, of which the system keeps account. So is a machine that stands still (its hypervisor runs
others, a process is stopped): whoever holds the lock runs meanwhile, or waits for a CPU or for storage. (What a
hypervisor takes away passes for time in which somebody ran; of that the system keeps account, too.)
"""

from __future__ import annotations

import resource
import threading
import time

_NAP = 0.0005


class GilProbe:
    """Measures, while it is entered, the share of time in which the lock was not to be had."""

    def __init__(self) -> None:
        self._napped = self._waited = 0.0
        self._stolen = self._wanted = 0
        self._late = self._ran = self._stored = 0.0  # since it was last entered
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._idle = self._queued = 0.0
        self._ticks = 0, 0

    def __enter__(self) -> GilProbe:
        self._idle = _idle_overshoot()  # before user code runs
        self._stop.clear()
        self._late = self._ran = self._stored = 0.0
        self._queued = _queued()
        self._ticks = _ticks()
        self._thread = threading.Thread(target=self._watch, name="headrace-gil", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        assert self._thread is not None
        queued = _queued() - self._queued
        self._thread.join()
        self._waited += self._stored + min(self._late, self._ran + queued)
        (stolen_before, wanted_before), (stolen, wanted) = self._ticks, _ticks()
        self._stolen += stolen - stolen_before
        self._wanted += wanted - wanted_before

    def _watch(self) -> None:
        # (nothing in the loop may give up the lock but the nap: to get it back takes as long as what is measured)
        queued, late, ran, stored = _queued(), 0.0, 0.0, 0.0
        used, reads = _used()
        while not self._stop.is_set():
            begun = time.perf_counter()
            time.sleep(_NAP)
            extra = max(0.0, time.perf_counter() - begun - _NAP - self._idle)
            (used_before, reads_before), (used, reads) = (used, reads), _used()
            self._napped += _NAP
            if reads > reads_before:
                stored += extra
            else:
                late += extra
                ran += used - used_before
        self._late, self._ran, self._stored = max(0.0, late - (_queued() - queued)), ran, stored

    @property
    def seconds(self) -> float:
        """How long was measured."""
        return self._napped + self._held()

    @property
    def held(self) -> float:
        """Share of the time in which others held the lock, 0 to 1."""
        return self._held() / self.seconds if self.seconds else 0.0

    def _held(self) -> float:
        """Seconds for which others held the lock. Of what seems to be, the machine ran others' work for a part."""
        return self._waited * (1.0 - min(1.0, self._stolen / self._wanted if self._wanted else 0.0))


def _used() -> tuple[float, int]:
    """The CPU time that this process has used, and how often it has waited for storage."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, usage.ru_majflt + usage.ru_inblock


def _queued() -> float:
    """Seconds for which this thread could have run and had no CPU; 0 where the system does not say."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


def _ticks() -> tuple[int, int]:
    """CPU time of the whole machine that a hypervisor gave to others, and all that was wanted, that included."""
    try:
        with open("/proc/stat", "rb") as file:
            user, nice, system, _, _, irq, soft, stolen = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return 0, 0
    return stolen, user + nice + system + irq + soft + stolen


_overshoot: float | None = None


def _idle_overshoot() -> float:
    """How late a nap ends on this machine anyway (timer slack, scheduling): the least of a few."""
    global _overshoot
    if _overshoot is None:
        late = []
        for _ in range(5):
            begun = time.perf_counter()
            time.sleep(_NAP)
            late.append(time.perf_counter() - begun - _NAP)
        _overshoot = min(late)
    return _overshoot
