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
from headrace.engine.board import Board
from headrace.host.slots import HostSlot, SlotPool
from tests.descriptors import none_left_open

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
    with none_left_open():
        arrays = [lent(pool) for _ in range(300)]
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


# -- ranges that workers take ----------------------------------------------------------------------------


@pytest.fixture
def board(arena: Arena) -> Iterator[Board]:
    made = Board(arena)
    yield made
    made.close()


def collated(pool: SlotPool, arena: Arena, board: Board, pages: int) -> HostSlot:
    """A slot with a batch in it, as a worker leaves it."""
    slot = pool.acquire()
    offset, nbytes = board.take(pages * PAGE) or (board.extend(pages * PAGE), pages * PAGE)
    arena.map(offset, nbytes)[: pages * PAGE] = b"1" * pages * PAGE
    pool.took(slot, offset, nbytes)
    return slot


def test_a_range_can_be_taken_as_soon_as_the_batch_in_it_is_gone(arena: Arena, board: Board) -> None:
    pool = SlotPool(arena, 0, keep=4, board=board)
    slot = collated(pool, arena, board, 4)
    place = slot.offset
    array = np.frombuffer(pool.lease(slot), np.uint8)
    assert board.take(PAGE) is None
    del array
    assert board.take(PAGE) == (place, 4 * PAGE), "before the pool looked"
    other = HostSlot(0, 0)
    pool.took(other, place, 4 * PAGE)
    pool.collect()
    assert (slot.nbytes, other.offset) == (0, place)
    assert board.take(PAGE) is None, "it is the other's now"


def test_what_a_forked_process_lets_go_stays_lent_here(arena: Arena, board: Board) -> None:
    pool = SlotPool(arena, 0, keep=4, board=board)
    array = np.frombuffer(pool.lease(collated(pool, arena, board, 1)), np.uint8)
    child = os.fork()
    if not child:
        del array
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert board.take(PAGE) is None
    assert array[0] == ord("1")


def test_few_free_ranges_hold_memory_and_their_places_are_used_again(arena: Arena, board: Board) -> None:
    pool = SlotPool(arena, 0, keep=4, board=board)
    before = arena.in_use
    for _ in range(20):
        slots = [collated(pool, arena, board, 8) for _ in range(12)]
        assert len({slot.offset for slot in slots}) == 12
        for slot in slots:
            pool.put_back(slot)
        pool.collect()
        assert blocks(arena) <= before + 9 * PAGE
    assert os.fstat(arena.fd).st_size <= 30 * 8 * PAGE + before
    pool.close()
    assert arena.in_use == before


def test_what_a_dead_worker_had_is_free_again(arena: Arena, board: Board) -> None:
    pool = SlotPool(arena, 0, keep=4, board=board)
    before = arena.in_use
    pool.reclaim(board.extend(PAGE), PAGE)
    assert arena.in_use == before and board.free_ranges() == 0
    pool.put_back(collated(pool, arena, board, 2))
    taken = board.take(PAGE)
    assert taken is not None
    pool.reclaim(*taken)
    assert board.take(PAGE) == taken
    pool.close()
    assert arena.in_use == before


def test_a_range_that_was_too_small_goes_first(arena: Arena, board: Board) -> None:
    pool = SlotPool(arena, 0, keep=4, board=board)
    before = arena.in_use
    small = (board.extend(PAGE), PAGE)  # a worker's own, which no slot ever had
    slot = collated(pool, arena, board, 4)
    slot_at = slot.offset
    board.put_down(*small)
    pool.put_back(slot)
    pool.collect()
    assert board.take(PAGE) == (slot_at, 4 * PAGE) and board.take(PAGE) is None
    pool.close()
    assert arena.in_use == before


def test_ranges_stay_for_some_batches_and_not_over_a_rest(arena: Arena, board: Board) -> None:
    def ranges() -> int:
        return (os.fstat(arena.fd).st_blocks * 512 - others) // (4 * PAGE)

    others = 0
    pool = SlotPool(arena, 0, keep=3, board=board)
    before, others = arena.in_use, os.fstat(arena.fd).st_blocks * 512
    for slot in [collated(pool, arena, board, 4) for _ in range(5)]:
        pool.put_back(slot)
    pool.collect()
    assert ranges() == 5, "the next batches take them"
    for _ in range(20):  # the same one again and again: the others are not needed
        pool.put_back(collated(pool, arena, board, 4))
        pool.collect()
    assert ranges() == 1
    for slot in [collated(pool, arena, board, 4) for _ in range(5)]:
        pool.put_back(slot)
    assert ranges() == 5
    pool.rest()
    assert ranges() == 1, "the next epoch may be long in coming"
    pool.close()
    assert arena.in_use == before
