"""One conformance suite over the places where batches can be made: the arena, and memory that is locked in place."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.cache.arena import Arena
from headrace.coordinate.coordinator import Batch, Coordinator
from headrace.coordinate.directory import Directory
from headrace.core.errors import OutOfSharedMemory
from headrace.core.forms import CACHEABLE
from headrace.core.layout import RowLayout, aligned
from headrace.core.places import Memory, Place
from headrace.core.ranges import Ranges
from headrace.core.sparse import PAGE
from headrace.engine.board import Board
from headrace.engine.rows import RowStages
from headrace.engine.store import LocalStore
from headrace.host.inline import InlineHost
from headrace.host.slots import SlotPool
from headrace.loader.wrap import RowWrapper, tensor_over
from headrace.recipes.compile import compile_recipe
from headrace.sampling import Geometry, UniformEpoch

SAMPLES, ROWS, SHAPE = 40, 8, (30, 10)
GONE = 0xDD


class LockedPages:
    """A few pages of this process's own that stay in memory. What is given back is spoilt, so that its use shows."""

    memory = Memory.PAGE_LOCKED

    def __init__(self, pages: int = 15) -> None:
        nbytes = pages * PAGE
        self._bytes = memoryview(mmap.mmap(-1, nbytes))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._bytes))
        if ctypes.CDLL(None).mlock(ctypes.c_void_p(address), ctypes.c_size_t(nbytes)):
            pytest.skip("this process may not lock memory (ulimit -l)")
        self._free = Ranges()
        self._free.free(0, nbytes)

    @property
    def in_use(self) -> int:
        return len(self._bytes) - self._free.total

    def allocate(self, nbytes: int) -> tuple[int, int]:
        size = aligned(nbytes, PAGE)
        offset = self._free.take(size)
        if offset is None:
            raise OutOfSharedMemory(
                f"{size} locked bytes are needed, and there are {self._free.largest} in a row"
            )
        return offset, size

    def free(self, offset: int, nbytes: int) -> None:
        self._bytes[offset : offset + nbytes] = bytes([GONE]) * nbytes
        self._free.free(offset, nbytes)

    def map(self, offset: int, nbytes: int) -> memoryview:
        if offset < 0 or nbytes < 1 or offset + nbytes > len(self._bytes):
            raise ValueError(f"range {offset}+{nbytes} is outside of the place")
        return self._bytes[offset : offset + nbytes]


class Bench:
    """An inline host that makes its batches in a place."""

    def __init__(self, place: Any) -> None:
        self.place = place
        self.arena = place if isinstance(place, Arena) else Arena()
        self.source = hr.synthetic.source(SAMPLES, shape=SHAPE, classes=SAMPLES)
        program = compile_recipe(hr.Recipe(self.source, decode=hr.synthetic.decode()), caches_decoded=False)
        assert program.layout is not None
        self.layout: RowLayout = program.layout
        board = Board(self.arena)
        self.others = self.arena.in_use if self.arena is place else 0
        """Bytes of the place that are not slots'."""
        directory = Directory(SAMPLES, dict.fromkeys(CACHEABLE, 0), 0)
        self.slots = SlotPool(self.arena, self.layout.nbytes(ROWS), keep=2, place=place)
        stages = RowStages(self.source, self.arena, board, LocalStore(None), self.layout, place=place)
        self.host = InlineHost(
            self.arena,
            board,
            Coordinator(directory, rows_per_order=3),
            self.slots,
            lambda order: stages.prepare(stages.fetch(order, None), program),
        )
        self.host.bytes_for = self.layout.nbytes
        self.epochs = 0

    @property
    def in_slots(self) -> int:
        """Bytes that slots have of the place."""
        return int(self.place.in_use) - self.others

    def feed(self) -> None:
        """Begin one more epoch."""
        self.host.coordinator.feed(Epoch(self.epochs))
        self.epochs += 1

    def batches(self) -> Iterator[tuple[Any, Batch, Any]]:
        """An epoch's batches: lease, batch, value."""
        self.feed()
        wrapper = RowWrapper(self.layout)
        while (batch := self.host.next_batch(60)) is not None:
            lease = self.slots.lease(batch.slot)  # type: ignore[arg-type]
            rows = len(batch.draw.indices)
            yield lease, batch, wrapper.wrap(lease, rows, rows)
            del lease

    def expected(self, indices: Any) -> Any:
        rows = [np.frombuffer(self.source.content(int(i)), np.uint8).reshape(SHAPE) for i in indices]
        return torch.from_numpy(np.stack(rows))


class Epoch:
    """Of the uniform order."""

    seed = 1

    def __init__(self, epoch: int) -> None:
        self._epoch = UniformEpoch(SAMPLES, Geometry(ROWS), seed=1, epoch=epoch, shuffle=True)

    def draw(self) -> Any:
        return self._epoch.draw()


PLACES: dict[str, Callable[[Path], Place]] = {
    "arena": lambda path: Arena(),
    "arena in a directory": lambda path: Arena(str(path)),
    "locked pages": lambda path: LockedPages(),
}


@pytest.fixture(params=PLACES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(PLACES[request.param](tmp_path))
    yield made
    made.host.close()


def test_batches_are_delivered_as_they_should_be(bench: Bench) -> None:
    seen: list[int] = []
    for lease, batch, (rows, labels) in bench.batches():
        assert batch.slot.memory is bench.place.memory is lease.memory
        assert torch.equal(rows, bench.expected(batch.draw.indices))
        assert len(labels) == len(rows)
        seen += batch.draw.indices.tolist()
    assert sorted(seen) == list(range(SAMPLES))


def test_rows_are_written_and_read_where_they_are(bench: Bench) -> None:
    """Nothing is copied: what tensors change changes in the place."""
    _, batch, (rows, _) = next(bench.batches())
    rows[2].fill_(99)
    buffer = bench.place.map(batch.slot.offset, batch.slot.nbytes)
    assert (bench.layout.views(buffer, len(rows))[0][2] == 99).all()


def test_what_is_kept_is_not_written_over_and_the_rest_is_used_again(bench: Bench) -> None:
    size = aligned(bench.layout.nbytes(ROWS), PAGE)
    kept: list[tuple[Any, Any]] = []
    for epoch in range(4):
        for number, (lease, batch, (rows, labels)) in enumerate(bench.batches()):
            if epoch == 1 and number % 2:
                kept.append((bench.expected(batch.draw.indices), rows))
            else:
                rows.fill_(0)
            del lease, rows, labels
    bench.slots.collect()
    assert bench.slots.leased == len(kept) == 2
    assert all(torch.equal(*pair) for pair in kept)
    assert bench.in_slots == size * bench.slots.count <= size * 4
    kept.clear()
    bench.slots.collect()
    assert bench.slots.leased == 0 and bench.in_slots == size * bench.slots.count <= size * 2


def test_a_slot_waits_for_its_event(bench: Bench) -> None:
    happened: set[int] = set()
    batches = bench.batches()
    awaited = []
    for number in range(2):
        lease, batch, value = next(batches)
        lease.until(SimpleNamespace(query=lambda number=number: number in happened, synchronize=lambda: None))
        awaited.append((batch.slot, bench.expected(batch.draw.indices)))
        del lease, batch, value
    for lease, batch, (rows, labels) in batches:
        assert batch.slot not in [slot for slot, _ in awaited]
        rows.fill_(1)
        del lease, rows, labels
    for slot, expected in awaited:
        buffer = bench.place.map(slot.offset, slot.nbytes)
        assert (bench.layout.views(buffer, ROWS)[0] == expected.numpy()).all()
    assert bench.slots.leased == 2
    happened |= {0, 1}
    bench.slots.collect()
    assert bench.slots.leased == 0


def test_all_of_it_comes_back(bench: Bench) -> None:
    for lease, batch, value in bench.batches():
        del lease, batch, value
    bench.feed()
    batch = bench.host.next_batch(60)
    assert batch is not None
    bench.slots.put_back(batch.slot)  # type: ignore[arg-type]
    assert bench.in_slots > 0
    bench.slots.close()
    assert bench.in_slots == 0


def test_slots_grow_as_batches_do(bench: Bench) -> None:
    slot = bench.slots.acquire()
    bench.slots.fit(slot, 3 * PAGE)
    assert slot.nbytes == 3 * PAGE == bench.in_slots
    np.frombuffer(bench.slots.lease(slot), np.uint8)[:] = 5
    assert bench.slots.acquire() is slot


def test_who_keeps_more_than_there_is_is_told() -> None:
    bench = Bench(LockedPages(4))
    kept = []
    with pytest.raises(OutOfSharedMemory, match="locked bytes"):
        for _, _, value in bench.batches():
            kept.append(value)
    assert len(kept) == 4
    bench.host.close()


def test_locked_pages_are_locked() -> None:
    def locked() -> int:
        line = next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmLck" in line)
        return int(line.split()[1]) * 1024

    before = locked()
    place = LockedPages(3)
    assert locked() >= before + 3 * PAGE
    del place


@pytest.mark.parametrize("memory", [Memory.DEVICE, Memory.REMOTE])
def test_what_no_processor_reaches_is_no_tensors_memory(memory: Memory) -> None:
    with pytest.raises(TypeError, match=memory.value):
        tensor_over(SimpleNamespace(memory=memory), torch.uint8, 1, 0)
