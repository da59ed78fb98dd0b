"""One preparing thread of a worker, as a piece of work that can be repeated and timed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.core.forms import Form
from headrace.core.layout import ALIGN, aligned
from headrace.engine import bodies
from headrace.measure.loaded_samples import LoadedSamples, NothingPrepared
from headrace.measure.timed_threads import Work
from headrace.recipes import program as programs
from headrace.recipes.compile import compile_recipe

STAGES = ("decode", "augment", "prepare", "uncached", "copy")
"""What a thread may be busy with.

``decode``: from encoded to decoded, into the cache. ``augment``: from decoded to finished rows. ``prepare``: from
encoded to finished rows, by the program of a loader that caches decoded samples. ``uncached``: the same by that of
one that does not, which may read JPEG images at a lower resolution. ``copy``: finished samples, from the cache.
"""
_ORDER = 0.01
"""Seconds that an order should take: long against its own cost, short against a measurement."""
_ROWS = 32


def possible_stages(loaded: LoadedSamples) -> tuple[str, ...]:
    """The stages that samples of this kind go through."""
    without = set()
    if not loaded.decoded:
        without |= {"decode", "augment"}
    if not loaded.bodies:
        without.add("copy")
    return tuple(stage for stage in STAGES if stage not in without)


def rows_per_order(loaded: LoadedSamples, stage: str) -> int:
    """How many rows make an order of sensible length."""
    one = PreparingThread(loaded, stage, 1)
    one()  # what is done only once, such as imports
    begun = time.perf_counter()
    one()
    taken = max(time.perf_counter() - begun, 1e-6)
    return max(1, min(_ROWS, len(loaded.indices), round(_ORDER / taken)))


class PreparingThread:
    """A thread's own program and memory. Call it to do one order; it says how many samples were prepared."""

    def __init__(self, loaded: LoadedSamples, stage: str, rows: int, start: int = 0) -> None:
        """``start``: the place of the first sample; threads that work at once should differ in it."""
        self._loaded, self._stage, self._rows, self._at = loaded, stage, rows, start
        self._form = Form.DECODED if stage == "augment" else Form.ENCODED
        self._program = compile_recipe(loaded.recipe, caches_decoded=stage != "uncached")
        self._out: list[NDArray[Any]] | None = None
        if loaded.layout is not None and stage != "decode":
            self._out = loaded.layout.views(_memory(loaded.layout.nbytes(rows)), rows)
        self._room = _Room()

    def __call__(self) -> int:
        """One order."""
        count = len(self._loaded.indices)
        places = [(self._at + row) % count for row in range(self._rows)]
        epoch, self._at = self._at // count, self._at + self._rows
        work = self._loaded.work(
            places, self._form, epoch=epoch, reserve=self._room if self._stage == "decode" else None
        )
        self._do(work, places)
        if len(work.faults) == self._rows:
            fault = next(iter(work.faults.values()))
            name = self._loaded.recipe.source.name(int(work.indices[0]))
            raise NothingPrepared(
                f"sample {work.indices[0]} ({name}): {fault.reason}\n{fault.traceback}".rstrip()
            )
        return self._rows - len(work.faults)

    def _do(self, work: programs.Work, places: list[int]) -> None:
        if self._stage == "decode":
            self._program.decode(work)
        elif self._stage == "copy":
            body = self._loaded.body
            assert body is not None and self._out is not None
            extents = [self._loaded.bodies[place] for place in places]
            bodies.load(extents, body.blocks(self._out), list(range(len(places))))
            self._program.label(work, self._out[body.fields :])
        elif self._out is not None:
            self._program.run(work, self._out)
        else:
            samples = self._program.samples(work)
            collate = self._loaded.recipe.collate
            if collate is not None and not work.faults:
                try:
                    collate(samples)
                except Exception as error:
                    raise NothingPrepared(f"collate fails: {type(error).__name__}: {error}") from error


def preparing_threads(loaded: LoadedSamples, stage: str, rows: int, count: int, first: int = 0) -> list[Work]:
    """Threads that work on different samples. ``first``: how many there are elsewhere before these."""
    step = max(1, len(loaded.indices) // 7)  # no divisor of most numbers of samples
    return [PreparingThread(loaded, stage, rows, (first + number) * step) for number in range(count)]


def _memory(nbytes: int) -> memoryview:
    """Memory that starts on a cache line and has been written to."""
    memory = np.full(nbytes + ALIGN, 1, np.uint8)
    return memoryview(memory[-memory.__array_interface__["data"][0] % ALIGN :])  # type: ignore[arg-type]


class _Room:
    """Room for decoded samples, the same for each order: new memory would cost time of the system's."""

    def __init__(self) -> None:
        self._memory = _memory(0)

    def __call__(self, arrays: Sequence[tuple[tuple[int, ...], str]]) -> list[NDArray[Any]]:
        sizes = [aligned(math.prod(shape) * np.dtype(kind).itemsize) for shape, kind in arrays]
        if sum(sizes) > len(self._memory):
            self._memory = _memory(sum(sizes))
        out, at = [], 0
        for (shape, kind), size in zip(arrays, sizes, strict=True):
            out.append(np.frombuffer(self._memory, kind, math.prod(shape), at).reshape(shape))
            at += size
        return out
