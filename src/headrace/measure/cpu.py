"""How fast the CPUs prepare samples that are in memory: each stage by number of threads, and by a whole staff."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from headrace.engine.gil import GilProbe
from headrace.measure.loaded_samples import LoadedSamples
from headrace.measure.preparing_thread import STAGES, possible_stages, preparing_threads, rows_per_order
from headrace.measure.processes import in_processes
from headrace.measure.timed_threads import run_threads, thread_counts
from headrace.planning import Staff, staff
from headrace.recipes.image.opencv import cv2


class Rate(msgspec.Struct, frozen=True):
    """Samples per second that so many threads of one process get through."""

    threads: int
    samples: float


class Stage(msgspec.Struct, frozen=True):
    """What one stage of preparing costs."""

    cpu: float
    """Seconds of processor time for one sample, where no other thread is at work."""
    machine: float
    """Samples per second by all CPUs, staffed as a loader does it."""
    threads: list[Rate] = []
    """By number of threads, in one process."""


class CPU(msgspec.Struct, frozen=True):
    """Of each stage; see ``preparing_thread.STAGES``. None for those that samples do not go through."""

    prepare: Stage
    uncached: Stage
    decode: Stage | None = None
    augment: Stage | None = None
    copy: Stage | None = None
    held: float | None = None
    """Share of the time for which user code holds the interpreter lock; None where there is no user code."""
    processes: int = 1
    """Of the staff, by which ``Stage.machine`` was measured."""
    threads: int = 1
    """Of each of its processes."""

    @property
    def got(self) -> float | None:
        """The share of a CPU that one thread got. Less than all of it: others were at work, or steps wait."""
        alone = self.prepare.threads[0] if self.prepare.threads else None
        return None if alone is None else min(1.0, alone.samples * self.prepare.cpu)


def cpu_ticks(cpus: int) -> int:
    """How often ``measure_cpu`` calls ``tick``."""
    return 1 + len(STAGES) * (len(thread_counts(cpus)) + 1)


def measure_cpu(loaded: LoadedSamples, cpus: int, seconds: float, tick: Callable[[], None]) -> CPU:
    """The rates of all stages, in about so many seconds. To be called ``as_in_workers``."""
    recipe = loaded.recipe
    each = seconds / cpu_ticks(cpus)
    found: dict[str, Stage] = {}
    held = _held(loaded, each) if recipe.user_code else None
    tick()
    # Steps that draw from generators of the process get a process each.
    wanted = staff(cpus, None, 1.0 if recipe.user_randomness else held)
    stages = possible_stages(loaded)
    for stage in STAGES:
        if stage in stages:
            found[stage] = _stage(loaded, stage, cpus, wanted, each, tick)
        else:
            for _ in range(len(thread_counts(cpus)) + 1):
                tick()
    return CPU(**found, held=held, processes=wanted.processes, threads=wanted.threads)


def _stage(
    loaded: LoadedSamples, stage: str, cpus: int, wanted: Staff, each: float, tick: Callable[[], None]
) -> Stage:
    rows = rows_per_order(loaded, stage)
    rates, cpu = [], 0.0
    for threads in thread_counts(cpus):
        throughput = run_threads(preparing_threads(loaded, stage, rows, threads), each)
        rates.append(Rate(threads, throughput.rate))
        cpu = cpu or throughput.cpu
        tick()
    machine = None
    if wanted.processes > 1:
        machine = in_processes(
            wanted.processes,
            lambda number: preparing_threads(loaded, stage, rows, wanted.threads, number * wanted.threads),
            each,
        )
    tick()
    return Stage(cpu, max(rate.samples for rate in rates) if machine is None else machine.rate, rates)


def _held(loaded: LoadedSamples, seconds: float) -> float:
    threads = preparing_threads(loaded, "prepare", rows_per_order(loaded, "prepare"), 1)
    with GilProbe() as probe:
        run_threads(threads, seconds)
    return probe.held


@contextlib.contextmanager
def as_in_workers() -> Iterator[None]:
    """Libraries start no threads of their own there; and what user code draws from is put back afterwards."""
    torch = sys.modules.get("torch")
    before = cv2.getNumThreads(), None if torch is None else torch.get_num_threads()
    state = random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()
    cv2.setNumThreads(0)
    if torch is not None:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before[0])
        if torch is not None:
            torch.set_num_threads(before[1])
            torch.set_rng_state(state[2])
        random.setstate(state[0])
        np.random.set_state(state[1])
