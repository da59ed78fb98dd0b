"""Slots are lent while anything made over them lives, and their memory goes back to the system after that."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import random
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from headrace.cache.arena import PAGE, Arena
from headrace.coordinate.messages import Order, decode_order
from headrace.host.slots import SlotPool

SIZE = 16 * PAGE


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena()
    yield made
    made.close()


def blocks(arena: Arena) -> int:
    """Bytes that the system holds for the arena."""
    return os.fstat(arena.fd).st_blocks * 512


def lent(pool: SlotPool) -> np.ndarray:
    """A filled array over a fresh lease."""
    array = np.frombuffer(pool.lease(pool.acquire()), np.uint8)
    array[:] = 1
    return array


DERIVED = {
    "array": lambda array: array,
    "view": lambda array: array[10:20],
    "view of a view": lambda array: array.reshape(16, -1)[3:5, ::2].T,
    "other dtype": lambda array: array.view(np.float32)[4:],
    "iterator": lambda array: iter(array[:4]),
    "memoryview": lambda array: memoryview(array)[5:6],
    "tensor": lambda array: torch.from_numpy(array),
    "view of a tensor": lambda array: torch.from_numpy(array).view(16, -1)[2:3].t(),
    "detached tensor": lambda array: torch.from_numpy(array)[:4].detach(),
    "tensor from a buffer": lambda array: torch.frombuffer(array.data, dtype=torch.int64),
    "storage": lambda array: torch.from_numpy(array).untyped_storage(),
    "array of a tensor": lambda array: torch.from_numpy(array)[7:].numpy(),
    "nested": lambda array: {"a": [torch.from_numpy(array)[1]]},
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_slot_stays_lent_while_anything_over_it_lives(arena: Arena, name: str) -> None:
    pool = SlotPool(arena, SIZE, keep=0)
    array = lent(pool)
    kept = DERIVED[name](array)
    del array
    pool.collect()
    assert pool.leased == 1
    assert pool.count == 1
    assert arena.in_use == SIZE
    other = lent(pool)
    other[:] = 2
    del kept
    assert pool.leased == 1
    pool.collect()
    assert pool.count == 1
    assert arena.in_use == SIZE
    del other
    pool.collect()
    assert (pool.leased, pool.count, arena.in_use) == (0, 0, 0)


def test_copies_do_not_keep_a_slot(arena: Arena) -> None:
    pool = SlotPool(arena, SIZE, keep=0)
    array = lent(pool)
    kept = [array.copy(), copy.deepcopy(array), torch.from_numpy(array).clone(), array.tobytes(), array[0]]
    del array
    pool.collect()
    assert pool.leased == 0
    assert kept[0][0] == 1


def test_what_is_kept_never_changes(arena: Arena) -> None:
    """Batches that the user keeps are not written to by later ones."""
    pool = SlotPool(arena, SIZE, keep=2)
    dice = random.Random(3)
    kept: dict[int, torch.Tensor] = {}
    for number in range(200):
        array = np.frombuffer(pool.lease(pool.acquire()), np.int64)
        array[:] = number
        if dice.random() < 0.5:
            kept[number] = torch.from_numpy(array)[:7]
        del array
        for name in [name for name in kept if dice.random() < 0.1]:
            del kept[name]
        assert all((tensor == name).all() for name, tensor in kept.items())
        pool.collect()
        assert pool.leased == len(kept)
        assert arena.in_use <= (len(kept) + 3) * SIZE
    kept.clear()
    pool.collect()
    assert pool.leased == 0
    assert pool.count == 2


def test_memory_returns_to_the_system(arena: Arena) -> None:
    pool = SlotPool(arena, SIZE, keep=1)
    arrays = [lent(pool) for _ in range(8)]
    assert blocks(arena) == arena.in_use == 8 * SIZE
    while len(arrays) > 2:
        arrays.pop()
    pool.collect()
    assert blocks(arena) == arena.in_use == 3 * SIZE, "two are lent, and one is kept for the next batch"
    arrays.clear()
    pool.collect()
    assert blocks(arena) == arena.in_use == SIZE


def test_free_slots_are_lent_again(arena: Arena) -> None:
    pool = SlotPool(arena, SIZE, keep=1)
    offsets = set()
    for _ in range(10):
        slot = pool.acquire()
        offsets.add(slot.offset)
        array = np.frombuffer(pool.lease(slot), np.uint8)
        del array
    assert len(offsets) == 1
    assert pool.count == 1


def test_many_threads_may_drop_tensors(arena: Arena) -> None:
    pool = SlotPool(arena, PAGE, keep=3)
    for _ in range(5):
        tensors = [torch.from_numpy(lent(pool)) for _ in range(120)]
        assert pool.leased == 120
        shares = [tensors[at::4] for at in range(4)]
        tensors.clear()
        barrier = threading.Barrier(5)

        def drop(share: list[torch.Tensor], barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            while share:
                share.pop()

        threads = [threading.Thread(target=drop, args=(share,)) for share in shares]
        for thread in threads:
            thread.start()
        barrier.wait()
        while any(thread.is_alive() for thread in threads):
            pool.collect()
        for thread in threads:
            thread.join()
        pool.collect()
        assert pool.leased == 0
        assert pool.count == 3
        assert arena.in_use == 3 * PAGE == blocks(arena)


def test_a_slot_in_a_reference_cycle_comes_back_with_it(arena: Arena) -> None:
    pool = SlotPool(arena, SIZE, keep=0)
    cycle: list[object] = [lent(pool)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    pool.collect()
    assert pool.leased == 0


def test_leases_outlive_the_arena(arena: Arena) -> None:
    pool = SlotPool(arena, SIZE, keep=0)
    tensor = torch.from_numpy(lent(pool))
    arena.close()
    assert int(tensor.sum()) == SIZE
    del tensor
    pool.collect()
    assert pool.leased == 0


def test_many_kept_batches_cost_no_descriptors(arena: Arena) -> None:
    pool = SlotPool(arena, PAGE, keep=0)
    before = len(os.listdir("/proc/self/fd"))
    arrays = [lent(pool) for _ in range(300)]
    assert len(os.listdir("/proc/self/fd")) == before
    arrays.clear()
    pool.collect()
    assert blocks(arena) == 0


# -- sizes -----------------------------------------------------------------------------------------------


def test_fitting_makes_a_slot_larger_and_gives_the_old_range_back(arena: Arena) -> None:
    pool = SlotPool(arena, PAGE, keep=4)
    small, slot = pool.acquire(), pool.acquire()
    pool.fit(slot, PAGE)
    assert slot.nbytes == PAGE
    pool.fit(slot, 3 * PAGE - 5)
    assert slot.nbytes == 3 * PAGE
    assert arena.in_use == 4 * PAGE
    pool.put_back(small)
    assert arena.in_use == 3 * PAGE, "a slot that has become too small is not kept"
    pool.put_back(slot)
    assert pool.acquire() is slot


def test_a_range_that_a_worker_allocated_replaces_the_slots_own(arena: Arena) -> None:
    pool = SlotPool(arena, PAGE, keep=1)
    slot = pool.acquire()
    np.frombuffer(arena.map(slot.offset, slot.nbytes), np.uint8)[:] = 1
    offset = arena.extend(4 * PAGE)
    pool.replace(slot, offset, 4 * PAGE)
    assert (slot.offset, slot.nbytes) == (offset, 4 * PAGE)
    assert arena.in_use == 4 * PAGE
    assert blocks(arena) == 0
    pool.discard(slot)
    assert (arena.in_use, pool.count) == (0, 0)


def test_slots_of_unknown_size_take_no_memory(arena: Arena) -> None:
    pool = SlotPool(arena, 0, keep=2)
    slots = [pool.acquire() for _ in range(3)]
    assert arena.in_use == 0
    for slot in slots:
        pool.put_back(slot)
    assert pool.count == 2


# -- orders ----------------------------------------------------------------------------------------------


def test_orders_are_written_apart_and_read_back(arena: Arena) -> None:
    pool = SlotPool(arena, PAGE, keep=1)
    slot = pool.acquire()
    written: list[tuple[Order, tuple[tuple[int, int], int, int]]] = []
    for batch in range(6):
        orders = [
            Order(batch * 10 + at, 0, 0, 4, at, 1, 2, 3, np.arange(at * 40).tobytes(), keys=b"k" * (37 * at))
            for at in range(5)
        ]
        written += zip(orders, pool.write_orders(slot, orders), strict=True)
    assert len(slot.areas) > 1, (
        "later orders (of lost ones) may need more room, and leave the first where they are"
    )
    used: list[tuple[int, int, int]] = []
    for order, (area, start, length) in written:
        assert start + length <= area[1]
        assert decode_order(arena.map(*area)[start : start + length]) == order
        used.append((area[0], start, start + length))
    used.sort()
    assert all(a[0] != b[0] or a[2] <= b[1] for a, b in itertools.pairwise(used))
    areas = sum(size for _, size in slot.areas)
    assert arena.in_use == PAGE + areas
    last = slot.areas[-1]
    pool.put_back(slot)
    assert arena.in_use == PAGE + last[1]
    assert slot.cursor == 0


def test_later_slots_are_as_large_as_most_and_free_ranges_are_used_again(arena: Arena) -> None:
    """Where workers find out how much a batch takes, they make the arena longer for each slot that is too small."""
    pool = SlotPool(arena, 0, keep=2)
    assert pool.acquire().nbytes == 0
    for size in (4, 5, 400, 5, 5):
        pool.replace(pool.acquire(), arena.extend(size * PAGE), size * PAGE)
    assert pool.acquire().nbytes == 5 * PAGE
    before = arena.size
    for _ in range(50):
        slots = [pool.acquire() for _ in range(8)]
        assert {slot.nbytes for slot in slots} == {5 * PAGE}
        for slot in slots:
            pool.put_back(slot)
    assert arena.size <= before + 8 * 5 * PAGE and len(arena._free) < 20
