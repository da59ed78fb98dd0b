"""Memory of a cache in huge pages: where it pays, and only there."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache import huge
from headrace.cache.arena import Arena
from headrace.cache.huge import HUGE, HugePages, worthwhile
from headrace.cache.mappings import map_file
from headrace.cache.windows import Windows
from headrace.coordinate.messages import Order
from headrace.core.forms import Form
from headrace.core.sparse import resident
from headrace.engine.store import Cache, LocalStore

PAGE = 64
MIB = 1 << 20
SPAN = 257 * MIB  # no multiple of a huge page, or the kernel might map it well by itself


@given(
    st.integers(0, 5 * PAGE),
    st.lists(st.tuples(st.integers(1, 3 * PAGE), st.integers(0, 40)), min_size=1, max_size=12),
)
def test_huge_pages_are_nearly_filled_or_shared_with_neighbours(
    start: int, sizes: list[tuple[int, int]]
) -> None:
    extents, at = [], start
    for nbytes, gap in sizes:
        extents.append((at, nbytes))
        at += nbytes + gap
    end = at - sizes[-1][1]
    filled = {byte for offset, nbytes in extents for byte in range(offset, offset + nbytes)}
    found = [offset // PAGE for offset, _ in worthwhile(extents, PAGE)]
    assert found == sorted(set(found))
    for offset, nbytes in worthwhile(extents, PAGE):
        assert (
            set(range(offset, offset + nbytes)) <= filled and offset // PAGE == (offset + nbytes - 1) // PAGE
        )
    for number in range(end // PAGE + 1):
        page = range(number * PAGE, (number + 1) * PAGE)
        mine, within = len(filled & set(page)), len(set(page) & set(range(start, end)))
        assert (number in found) == (2 * mine >= PAGE and 8 * (within - mine) <= within)


def test_extents_side_by_side_lie_in_huge_pages_but_for_the_ends() -> None:
    size = 100
    extents = [(10 + number * size, size - 4) for number in range(7)]
    assert [offset // PAGE for offset, _ in worthwhile(extents, PAGE)] == list(range(11))
    assert worthwhile([(number * 2 * size, size) for number in range(8)], 4 * PAGE) == []


@pytest.fixture
def fd() -> Iterator[int]:
    """The file of a cache."""
    made = os.memfd_create("headrace-test-huge")
    os.ftruncate(made, SPAN)
    yield made
    os.close(made)


def in_huge_pages(fd: int) -> int:
    """Bytes of the file that this process sees in huge pages."""
    inode, mine, total = str(os.fstat(fd).st_ino), False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            mine = words[4] == inode and "headrace-test-huge" in line
        elif mine and words[0] == "ShmemPmdMapped:":
            total += 1024 * int(words[1])
    return total


def address_of(memory: memoryview) -> int:
    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return address


@pytest.mark.parametrize("align", [1 << 16, 2 * MIB, 64 * MIB])
def test_a_file_can_be_mapped_at_a_multiple(fd: int, align: int) -> None:
    for nbytes in (100, 3 * MIB, SPAN):
        memory = map_file(fd, 0, nbytes, align=align)
        assert address_of(memory) % align == 0 and len(memory) == nbytes
        memory[0] = memory[nbytes - 1] = 7
        assert os.pread(fd, 1, nbytes - 1) == b"\7"


def possible() -> bool:
    """Whether this machine makes huge pages when it is asked to."""
    fd = os.memfd_create("headrace-test-huge")
    try:
        os.ftruncate(fd, HUGE)
        memory = map_file(fd, 0, HUGE, align=HUGE)
        return HugePages(address_of(memory), HUGE).take(fd, [(0, HUGE)], SPAN) == 1
    finally:
        os.close(fd)


needs_huge = pytest.mark.skipif(
    not HUGE or not possible(), reason="this kernel makes no huge pages when asked"
)


@needs_huge
def test_what_is_about_to_be_filled_is_taken_in_huge_pages(fd: int) -> None:
    made = Windows(fd, SPAN)
    size = HUGE // 4
    made.view(HUGE - 100, 100)[:] = b"x" * 100  # the end of a neighbour's
    extents = [(HUGE + number * size, size - 4096) for number in range(8)]
    made.settle(fd, extents, SPAN)
    assert resident(fd) == 2 * HUGE + 4096
    for offset, nbytes in extents:
        made.view(offset, nbytes)[:] = bytes([offset // size % 256]) * nbytes
    assert in_huge_pages(fd) == 2 * HUGE
    assert made.view(HUGE - 100, 100) == b"x" * 100
    for offset, nbytes in extents:
        assert os.pread(fd, nbytes, offset) == bytes([offset // size % 256]) * nbytes
    assert made._huge is not None and made._huge.take(fd, extents, SPAN) == 0, "it has memory"


@needs_huge
def test_pages_of_neighbours_keep_what_is_in_them(fd: int) -> None:
    made = Windows(fd, SPAN)
    half = HUGE // 2
    made.view(half, half)[:] = b"n" * half
    made.settle(fd, [(0, half)], SPAN)
    assert resident(fd) == HUGE
    assert bytes(made.view(half, half)) == b"n" * half and not any(made.view(0, half))


@needs_huge
def test_no_more_is_taken_than_the_cache_may_hold(fd: int) -> None:
    made = Windows(fd, SPAN)
    made.settle(fd, [(0, 8 * HUGE)], 3 * HUGE)
    assert resident(fd) == 3 * HUGE
    made.settle(fd, [(0, 8 * HUGE)], 3 * HUGE)
    assert resident(fd) == 3 * HUGE


@pytest.mark.skipif(not HUGE, reason="needs transparent huge pages of at most 4 MiB")
def test_a_kernel_that_makes_none_is_not_asked_for_ever(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Libc:
        @staticmethod
        def madvise(address: int, nbytes: int, advice: int) -> int:
            asked.append(nbytes)
            ctypes.set_errno(22)
            return -1

    monkeypatch.setattr(huge, "_libc", Libc)
    made = Windows(fd, SPAN)
    for number in range(9):
        made.settle(fd, [(number * HUGE, HUGE)], SPAN)
    assert asked == [HUGE] * 3


@pytest.mark.skipif(not HUGE, reason="needs transparent huge pages of at most 4 MiB")
def test_huge_pages_that_cost_more_than_small_ones_are_given_up(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(huge.time, "thread_time", lambda: float(next(clock)))
    made = Windows(fd, SPAN)
    assert made._huge is not None
    took = [made._huge.take(fd, [(number * HUGE, HUGE)], SPAN) for number in range(5)]
    assert took[3:] == [0, 0]


def test_where_only_windows_can_be_mapped_memory_comes_as_it_is_filled(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cache.windows.address_room", lambda: MIB)
    Windows(fd, SPAN).settle(fd, [(0, 8 * MIB)], SPAN)
    assert resident(fd) == 0


def test_without_huge_pages_nothing_is_taken_ahead(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cache.windows.HUGE", 0)
    Windows(fd, SPAN).settle(fd, [(0, 8 * MIB)], SPAN)
    assert resident(fd) == 0


@needs_huge
def test_an_order_s_samples_are_decoded_into_huge_pages() -> None:
    cache = Cache(Arena(), SPAN, budget=16 * HUGE)
    os.ftruncate(cache.arena.fd, SPAN)
    size = HUGE // 4
    blocks = np.array([(int(Form.DECODED), number * size, size) for number in range(16)], np.int64)
    order = Order(1, 0, 0, 16, 0, 0, 0, 0, b"", grants=blocks.tobytes())
    store = LocalStore(cache)
    assert None not in store.take(order, Form.DECODED, [size - 64] * 16)
    assert resident(cache.arena.fd) == 4 * HUGE
    cache.arena.close()
