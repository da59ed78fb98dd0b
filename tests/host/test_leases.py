"""Leases end when all of their holders are done: what was made over the memory, and events."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from headrace.cache.arena import PAGE, Arena
from headrace.engine.board import Board
from headrace.host.slots import HostSlot, SlotPool

SIZE = 4 * PAGE


class Event:
    """Happens when a test says so."""

    def __init__(self) -> None:
        self._happened = threading.Event()
        self.waited = 0

    def happen(self) -> None:
        self._happened.set()

    def query(self) -> bool:
        return self._happened.is_set()

    def synchronize(self) -> None:
        self.waited += 1
        assert self._happened.wait(60)


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena()
    yield made
    made.close()


def borrow(pool: SlotPool, *events: Event) -> tuple[HostSlot, np.ndarray]:
    """A slot, and an array over its lease."""
    slot = pool.acquire()
    lease = pool.lease(slot)
    for event in events:
        lease.until(event)
    return slot, np.frombuffer(lease, np.uint8)


def test_a_slot_is_not_given_out_before_its_event(arena: Arena) -> None:
    pool, event = SlotPool(arena, SIZE, keep=2), Event()
    slot, array = borrow(pool, event)
    array[:] = 7
    del array
    for _ in range(3):
        other = pool.acquire()
        assert other is not slot and other.offset != slot.offset
        assert pool.leased == 1
        pool.put_back(other)
    assert arena.map(slot.offset, slot.nbytes)[0] == 7
    event.happen()
    pool.collect()
    assert pool.leased == 0 and pool.free == 2
    assert slot in (pool.acquire(), pool.acquire())
    assert event.waited == 0, "looking for slots waits for nothing"


def test_nor_while_an_array_lives_whose_event_has_happened(arena: Arena) -> None:
    pool, event = SlotPool(arena, SIZE, keep=2), Event()
    slot, array = borrow(pool, event)
    event.happen()
    assert pool.acquire() is not slot and pool.leased == 1
    del array
    assert pool.acquire() is slot and pool.leased == 0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_all_events_have_to_happen(arena: Arena, order: tuple[int, ...]) -> None:
    pool, events = SlotPool(arena, SIZE, keep=1), [Event(), Event(), Event()]
    slot, array = borrow(pool, *events)
    del array
    for number in order:
        pool.collect()
        assert pool.leased == 1
        events[number].happen()
    pool.collect()
    assert pool.leased == 0 and pool.acquire() is slot


def test_a_range_of_the_boards_list_is_kept_until_the_event(arena: Arena) -> None:
    board = Board(arena)
    pool, event = SlotPool(arena, 0, keep=4, board=board), Event()
    slot = pool.acquire()
    place = board.extend(SIZE)
    pool.took(slot, place, SIZE)
    lease = pool.lease(slot)
    lease.until(event)
    del lease
    pool.collect()
    assert board.take(SIZE) is None
    pool.rest()
    event.happen()
    pool.collect()
    assert board.take(SIZE) == (place, SIZE) and pool.leased == 0
    board.close()


def mapped(fd: int) -> int:
    inode = f" {os.fstat(fd).st_ino} "
    return Path("/proc/self/maps").read_text().count(inode)


def test_memory_stays_mapped_until_the_event(arena: Arena) -> None:
    """Even if it is forgotten meanwhile, as are ranges that have not been used for long."""
    pool, event = SlotPool(arena, SIZE, keep=0), Event()
    before = mapped(arena.fd)
    slot, array = borrow(pool, event)
    arena.forget(slot.offset, slot.nbytes)
    del array
    pool.collect()
    assert mapped(arena.fd) == before + 1
    event.happen()
    pool.collect()
    assert mapped(arena.fd) == before and arena.in_use == 0


def test_closing_waits_for_events(arena: Arena) -> None:
    pool, first, second = SlotPool(arena, SIZE, keep=0), Event(), Event()
    _, gone = borrow(pool, first)
    _, kept = borrow(pool, second)
    kept[:] = 3
    del gone
    pool.collect()
    threading.Timer(0.05, first.happen).start()
    threading.Timer(0.1, second.happen).start()
    pool.close()
    assert first.query() and second.query() and first.waited == second.waited == 1
    assert arena.in_use == SIZE and (kept == 3).all(), "what an array keeps stays"


def test_after_that_an_event_is_waited_for_at_once(arena: Arena) -> None:
    pool, event = SlotPool(arena, SIZE, keep=0), Event()
    lease = pool.lease(pool.acquire())
    pool.close()
    event.happen()
    lease.until(event)
    assert event.waited == 1


def test_an_event_that_fails_is_heard_of_and_keeps_its_slot(arena: Arena) -> None:
    class Broken(Event):
        broken = True

        def query(self) -> bool:
            if self.broken:
                raise RuntimeError("the device is lost")
            return True

    pool, event = SlotPool(arena, SIZE, keep=1), Broken()
    slot, array = borrow(pool, event)
    del array
    for _ in range(2):
        with pytest.raises(RuntimeError, match="device is lost"):
            pool.acquire()
    assert pool.leased == 1
    event.broken = False
    assert pool.acquire() is slot


@pytest.mark.parametrize("seed", range(3))
def test_what_anybody_needs_is_never_written_over(arena: Arena, seed: int) -> None:
    dice = random.Random(seed)
    pool = SlotPool(arena, SIZE, keep=2)
    arrays: dict[int, np.ndarray] = {}
    events: dict[int, list[Event]] = {}
    places: dict[int, tuple[int, int]] = {}
    for number in range(1, 250):
        events[number] = [Event() for _ in range(dice.choice((0, 0, 1, 2)))]
        slot, arrays[number] = borrow(pool, *events[number])
        places[number] = (slot.offset, slot.nbytes)
        arrays[number][:] = number
        for name in [name for name in arrays if dice.random() < 0.4]:
            del arrays[name]
        for awaited in events.values():
            while awaited and dice.random() < 0.2:
                awaited.pop(dice.randrange(len(awaited))).happen()
        held = {name for name in places if name in arrays or events[name]}
        assert all(arena.map(*places[name])[5] == name for name in held)
        pool.collect()
        assert pool.leased == len(held)
        assert arena.in_use <= (len(held) + 2) * SIZE
        places = {name: place for name, place in places.items() if name in held}
    arrays.clear()
    for awaited in events.values():
        for event in awaited:
            event.happen()
    pool.collect()
    assert pool.leased == 0 and arena.in_use == 2 * SIZE


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_that_lags_reads_the_slot_as_it_was(arena: Arena) -> None:
    """Slots that are page-locked are read by the GPU itself, long after the call that asks for it has returned."""
    pool = SlotPool(arena, 1 << 20, keep=100)  # registered memory is not to be unmapped
    stream, found, locked = torch.cuda.Stream(), [], set()
    for number in range(60):
        slot = pool.acquire()
        lease = pool.lease(slot)
        tensor = torch.frombuffer(lease, dtype=torch.float32)
        if tensor.data_ptr() not in locked:
            assert torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), slot.nbytes, 0) == 0
            locked.add(tensor.data_ptr())
        tensor.fill_(float(number))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(4_000_000)
            found.append(tensor.to("cuda", non_blocking=True))
            event = torch.cuda.Event()
            event.record(stream)
        lease.until(event)
        del tensor, lease
    assert pool.leased > 1, "the GPU is behind"
    torch.cuda.synchronize()
    assert all((there == number).all() for number, there in enumerate(found))
    pool.collect()
    assert pool.leased == 0
    for address in locked:
        torch.cuda.cudart().cudaHostUnregister(address)
