"""Samples in memory, encoded and decoded, for the CPU to work on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.cache import extents
from headrace.cache.arena import Arena
from headrace.core.errors import BadSample, HeadraceError
from headrace.core.forms import Form
from headrace.core.layout import RowLayout, aligned
from headrace.core.memory import available_memory
from headrace.core.tree import flatten
from headrace.engine.bodies import Body
from headrace.recipes.compile import compile_recipe
from headrace.recipes.placing import field_of
from headrace.recipes.program import Program, Reserve, Work
from headrace.recipes.recipe import Recipe

MOST = 256
"""Samples that are loaded."""
_BYTES = 256 << 20
"""Bytes of one form, at most: beyond what CPUs cache, where samples are many or large."""
_BLOCK = 16


class NothingPrepared(HeadraceError, RuntimeError):
    """Not one of the samples that were tried could be read or prepared."""


@dataclass
class LoadedSamples:
    """Samples of a recipe that can all be prepared."""

    recipe: Recipe
    indices: list[int] = field(default_factory=list)
    encoded: list[bytes] = field(default_factory=list)
    """What the source gave."""
    decoded: list[Any] = field(default_factory=list)
    """As the cache gives them: read-only, in shared memory. Empty where they cannot be cached."""
    decoded_sizes: list[int] = field(default_factory=list)
    """Bytes of their extents."""
    augmented_sizes: list[int] = field(default_factory=list)
    bodies: list[memoryview] = field(default_factory=list)
    """Extents of the size of augmented samples, in shared memory; what is in them does not matter."""
    layout: RowLayout | None = None
    """How rows lie; None where samples are collated, or are no arrays."""
    arena: Arena = field(default_factory=Arena)

    @property
    def body(self) -> Body | None:
        """The part of a row that is cached, as it lies in its extent."""
        if self.layout is None or self.recipe.followers:
            return None
        body = Body.of(self.layout, targets=self.recipe.source.targets is not None)
        return body if body.nbytes else None

    def work(self, at: Sequence[int], form: Form, *, epoch: int = 0, reserve: Reserve | None = None) -> Work:
        """An order for the samples at these places. ``reserve``: where decoded samples are kept, if they are."""
        inputs: Sequence[Any] = self.decoded if form == Form.DECODED else self.encoded
        return make_work(
            [self.indices[place] for place in at],
            [inputs[place] for place in at],
            form,
            epoch=epoch,
            reserve=reserve,
        )

    def close(self) -> None:
        """Give the shared memory back."""
        self.decoded, self.bodies = [], []
        self.arena.close()


def make_work(
    indices: Sequence[int], inputs: list[Any], form: Form, *, epoch: int = 0, reserve: Reserve | None = None
) -> Work:
    """An order as the engine makes them. ``reserve``: where decoded samples are kept; None: they are not."""
    count = len(indices)
    return Work(
        indices=np.array(indices, np.int64),
        seed=0,
        epoch=epoch,
        forms=np.full(count, int(form), np.uint8),
        inputs=inputs,
        keep=np.full(count, reserve is not None),
        reserve=reserve or _no_room,
    )


def _no_room(arrays: Sequence[Any]) -> list[None]:
    return [None] * len(arrays)


def load_samples(recipe: Recipe, order: Sequence[int], seconds: float) -> LoadedSamples:
    """Read and prepare samples of ``order`` for at most about so many seconds; at least one, if any can be."""
    loaded = LoadedSamples(recipe)
    program = compile_recipe(recipe, caches_decoded=True)
    limit = min(_BYTES, available_memory() // 16)
    pieces: list[list[bytes | memoryview]] = []
    until = time.perf_counter() + seconds
    bad: BadSample | None = None
    room = limit
    with ThreadPoolExecutor(_BLOCK, thread_name_prefix="headrace-measure") as pool:
        for start in range(0, min(MOST, len(order)), _BLOCK):
            tried = [int(index) for index in order[start : start + _BLOCK]]
            blobs = list(pool.map(lambda index: _read(recipe, index), tried))
            for index, blob in zip(tried, blobs, strict=True):
                prepared = blob if isinstance(blob, BadSample) else _prepare(loaded, program, index, blob)
                if isinstance(prepared, BadSample):
                    bad = bad or prepared
                    continue
                pieces.append(prepared)
                room -= max(sum(map(len, prepared)), len(loaded.encoded[-1]), loaded.augmented_sizes[-1])
                if room < 0 or time.perf_counter() > until:
                    break
            if room < 0 or (pieces and time.perf_counter() > until):
                break
    if not loaded.indices:
        raise NothingPrepared(
            f"not one of {min(MOST, len(order))} samples could be prepared; the first: {bad}"
            + (f"\n\n{bad.traceback}".rstrip() if bad is not None and recipe.user_code else "")
        )
    if all(pieces):
        _lay_down(loaded, pieces)
    body = loaded.body
    if body is not None:
        size = aligned(body.nbytes)
        memory = loaded.arena.map(*loaded.arena.allocate(size * len(loaded.indices)))
        np.frombuffer(memory, np.uint8)[:] = 1
        loaded.bodies = [memory[at * size :][: body.nbytes] for at in range(len(loaded.indices))]
    return loaded


def _read(recipe: Recipe, index: int) -> bytes | BadSample:
    try:
        blob = recipe.source.read_many([index])[0]
    except Exception as error:
        blob = error
    if isinstance(blob, BaseException):
        return BadSample(index, recipe.source.name(index), f"{type(blob).__name__}: {blob}")
    return blob


def _prepare(
    loaded: LoadedSamples, program: Program, index: int, blob: bytes
) -> list[bytes | memoryview] | BadSample:
    """Take a sample in; the pieces of its decoded form, none where that cannot be cached."""
    work = make_work([index], [blob], Form.ENCODED, reserve=_no_room)
    program.decode(work)
    value = work.kept.get(0)
    samples: list[Any] = []
    if not work.faults:
        again = make_work([index], [blob], Form.ENCODED)
        samples = program.samples(again)
        work.faults.update(again.faults)
    if work.faults:
        fault = work.faults[0]
        return BadSample(index, loaded.recipe.source.name(index), fault.reason, traceback=fault.traceback)
    loaded.indices.append(index)
    loaded.encoded.append(blob)
    if loaded.recipe.collate is None:
        loaded.layout = program.layout
    loaded.augmented_sizes.append(_augmented_size(loaded, samples[0]))
    return (extents.dump(value) or []) if value is not None else []


def _augmented_size(loaded: LoadedSamples, sample: Any) -> int:
    body = loaded.body
    if body is not None:
        return body.nbytes
    value = sample[0] if loaded.recipe.source.targets is not None else sample
    fields = [field_of(leaf) for leaf in flatten(value)[0]]
    return sum(one.nbytes for one in fields if one is not None)


def _lay_down(loaded: LoadedSamples, pieces: list[list[bytes | memoryview]]) -> None:
    """Put decoded samples into shared memory, as the cache has them."""
    loaded.decoded_sizes = [sum(map(len, parts)) for parts in pieces]
    offset, nbytes = loaded.arena.allocate(sum(map(aligned, loaded.decoded_sizes)))
    memory = loaded.arena.map(offset, nbytes)
    target: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
    at = 0
    for parts, size in zip(pieces, loaded.decoded_sizes, strict=True):
        place = at
        for part in parts:
            target[place : place + len(part)] = np.frombuffer(part, np.uint8)
            place += len(part)
        loaded.decoded.append(extents.load(memory[at : at + size]))
        at += aligned(size)
