"""One conformance suite over the arena's backends: a memfd, a file in tmpfs, a file in any directory."""

from __future__ import annotations

import gc
import os
import random as randomness
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cache import arena as module
from headrace.cache.arena import PAGE, Arena
from headrace.core.errors import OutOfSharedMemory
from tests.descriptors import none_left_open


@pytest.fixture(scope="module")
def tmpfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A small tmpfs of our own."""
    path = str(tmp_path_factory.mktemp("shm"))
    options = ["mount", "-t", "tmpfs", "-o", "size=4m", "headrace-test", path]
    if os.geteuid() != 0 or subprocess.run(options, capture_output=True).returncode != 0:
        pytest.skip("mounting a tmpfs needs root and the right to mount")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture(params=["memfd", "tmpfs", "directory", "directory without O_TMPFILE"])
def make(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Arena]:
    """Makes arenas of one backend."""
    monkeypatch.delenv("HEADRACE_SHM_DIR", raising=False)
    if request.param == "memfd":
        return Arena
    if request.param == "directory without O_TMPFILE":
        monkeypatch.delattr(os, "O_TMPFILE")
    directory = request.getfixturevalue("tmpfs") if request.param == "tmpfs" else str(tmp_path)
    return lambda: Arena(directory)


@pytest.fixture
def arena(make: Callable[[], Arena]) -> Iterator[Arena]:
    made = make()
    yield made
    made.close()


def blocks(arena: Arena) -> int:
    """Bytes that the system holds for the arena."""
    return os.fstat(arena.fd).st_blocks * 512


def fill(arena: Arena, offset: int, nbytes: int, value: int) -> None:
    np.frombuffer(arena.map(offset, nbytes), np.uint8)[:] = value


def test_ranges_are_whole_pages_large_enough_and_apart(arena: Arena) -> None:
    ranges = [arena.allocate(size) for size in (1, 100, PAGE, PAGE + 1, 3 * PAGE, 0)]
    assert [size // PAGE for _, size in ranges] == [1, 1, 1, 2, 3, 1]
    assert all(offset % PAGE == 0 for offset, _ in ranges)
    for number, (offset, size) in enumerate(ranges):
        fill(arena, offset, size, number + 1)
    for number, (offset, size) in enumerate(ranges):
        assert (np.frombuffer(arena.map(offset, size), np.uint8) == number + 1).all()
    assert arena.in_use == sum(size for _, size in ranges)


def test_freed_ranges_are_used_again(arena: Arena) -> None:
    first = arena.allocate(4 * PAGE)
    size = arena.size
    arena.free(*first)
    again = [arena.allocate(PAGE) for _ in range(4)]
    assert arena.size == size
    assert sorted(offset for offset, _ in again) == [first[0] + at * PAGE for at in range(4)]
    assert arena.in_use == 4 * PAGE


def test_free_ranges_are_one_with_their_neighbours(arena: Arena) -> None:
    """Else those who keep batches for a while would leave ever more of them, each too small for what comes next."""
    chance = randomness.Random(3)
    held: list[tuple[int, int]] = []
    for _ in range(2000):
        if len(held) < 12 or chance.random() < 0.5:
            held.append(arena.allocate(chance.randrange(1, 20 * PAGE)))
        else:
            arena.free(*held.pop(chance.randrange(len(held))))
        while len(held) > 30:
            arena.free(*held.pop(chance.randrange(len(held))))
        assert len(arena._free) <= len(held) + 1
    assert arena.size < 3 * 30 * 20 * PAGE
    for piece in held:
        arena.free(*piece)
    assert list(arena._free) == [(0, arena.size)]


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped here", "mapped nowhere"])
def test_freed_memory_returns_to_the_system(arena: Arena, mapped: bool) -> None:
    offset, size = arena.allocate(64 * PAGE)
    fill(arena, offset, size, 1)
    if not mapped:
        arena.forget(offset, size)
        gc.collect()
    full = blocks(arena)
    assert full >= size
    arena.free(offset, size)
    assert arena.in_use == 0
    assert blocks(arena) <= full - size


def test_growth_leaves_mapped_ranges_alone(arena: Arena) -> None:
    offset, size = arena.allocate(2 * PAGE)
    view = np.frombuffer(arena.map(offset, size), np.uint8)
    view[:] = 42
    for _ in range(20):
        arena.allocate(PAGE)
    assert (view == 42).all()
    view[0] = 7
    assert arena.map(offset, size)[0] == 7
    assert os.fstat(arena.fd).st_size == arena.size


def test_a_range_is_mapped_once(arena: Arena) -> None:
    offset, size = arena.allocate(PAGE)
    assert arena.map(offset, size) is arena.map(offset, size)


@pytest.mark.parametrize(
    ("offset", "nbytes"),
    [
        (-PAGE, PAGE),
        (0, 0),
        (0, -1),
        (1, 8),
        (0, 5 * PAGE),
        (4 * PAGE, 1),
        (2**50, PAGE),
        (3 * PAGE, PAGE + 1),
    ],
)
def test_ranges_outside_of_the_arena_are_refused(arena: Arena, offset: int, nbytes: int) -> None:
    arena.allocate(4 * PAGE)
    with pytest.raises(ValueError, match="outside"):
        arena.map(offset, nbytes)


def test_memory_outlives_the_arena_while_it_is_used(make: Callable[[], Arena]) -> None:
    arena = make()
    view = np.frombuffer(arena.map(*arena.allocate(PAGE)), np.uint8)
    view[:] = 9
    arena.close()
    arena.close()
    gc.collect()
    assert (view == 9).all()


def test_mappings_cost_no_descriptors_and_end_with_their_last_view(arena: Arena) -> None:
    """Else a user who keeps a thousand batches runs out of descriptors."""
    with none_left_open():
        ranges = [arena.allocate(PAGE) for _ in range(50)]
        views = [np.frombuffer(arena.map(*place), np.uint8) for place in ranges]
    addresses = [hex(view.__array_interface__["data"][0])[2:] for view in views]
    for place in ranges:
        arena.forget(*place)
    assert all(view[0] == 0 for view in views), "unmapped under a view"
    del views
    gc.collect()
    starts = {line.split("-")[0].lstrip("0") for line in Path("/proc/self/maps").read_text().splitlines()}
    assert not starts & set(addresses)


def _child(arena: Arena, place: tuple[int, int], pipe: Any) -> None:
    fill(arena, *place, 77)
    pipe.send(bytes(arena.map(*place)[:4]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_sees_the_same_bytes(arena: Arena, method: str) -> None:
    if method == "spawn" and not hasattr(os, "O_TMPFILE"):
        pytest.skip("the same descriptor as with O_TMPFILE")
    place = arena.allocate(2 * PAGE)
    context = get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(arena, place, theirs))
    process.start()
    assert ours.recv() == b"MMMM"
    process.join()
    assert bytes(arena.map(*place)[-4:]) == b"MMMM"


def test_nothing_lies_in_the_directory(arena: Arena) -> None:
    arena.allocate(PAGE)
    if arena.directory is not None:
        assert os.listdir(arena.directory) == []
    assert os.fstat(arena.fd).st_nlink == 0 or arena.directory is None


@given(
    st.lists(st.one_of(st.integers(1, 6 * PAGE), st.none()), max_size=40), st.randoms(use_true_random=False)
)
@settings(deadline=None, max_examples=40)
def test_live_ranges_never_overlap(steps: list[int | None], random: Any) -> None:
    """Any sequence of allocations (a size) and frees (None)."""
    arena = Arena()
    try:
        live: dict[tuple[int, int], int] = {}
        for number, size in enumerate(steps, start=1):
            if size is not None:
                place = arena.allocate(size)
                view = np.frombuffer(arena.map(*place), np.uint8)
                assert place[1] >= size
                view[:] = number % 251
                live[place] = number % 251
            elif live:
                place = random.choice(list(live))
                del live[place]
                arena.free(*place)
            assert arena.in_use == sum(size for _, size in live)
            assert blocks(arena) == arena.in_use
        for place, value in live.items():
            assert (np.frombuffer(arena.map(*place), np.uint8) == value).all()
    finally:
        arena.close()


# -- running out -----------------------------------------------------------------------------------------


@pytest.mark.faults
def test_full_tmpfs_raises_with_advice_and_no_bus_error(tmpfs: str) -> None:
    """In a process of its own: a bus error would take the test run with it."""
    code = f"""
        import numpy as np
        from headrace.cache.arena import Arena
        from headrace.core.errors import OutOfSharedMemory
        arena, kept = Arena({tmpfs!r}), []
        try:
            while True:
                place = arena.allocate(1 << 20)
                np.frombuffer(arena.map(*place), np.uint8)[:] = 1
                kept.append(place)
        except OutOfSharedMemory as error:
            print(len(kept), error)
        before = arena.in_use
        arena.free(*kept.pop())
        place = arena.allocate(1 << 20)  # what was refused did not eat memory, and what was freed can be had
        np.frombuffer(arena.map(*place), np.uint8)[:] = 2
        assert arena.in_use == before
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout.startswith("4 ")
    for advice in ("1.0 MiB", tmpfs, "remount,size=", "--shm-size", "HEADRACE_SHM_DIR", "batch_size"):
        assert advice in done.stdout


@pytest.mark.faults
def test_unreserved_ranges_are_reserved_piece_by_piece(tmpfs: str) -> None:
    arena = Arena(tmpfs)
    try:
        offset, size = arena.allocate(64 << 20, reserve=False)
        assert blocks(arena) == 0
        arena.reserve(offset + 64, 1 << 20)
        assert blocks(arena) >= 1 << 20
        with pytest.raises(OutOfSharedMemory):
            arena.reserve(offset + (1 << 20), 8 << 20)
        arena.free(offset, size)
        assert blocks(arena) == 0
    finally:
        arena.close()


def test_more_than_is_available_is_refused_for_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_SHM_DIR", raising=False)
    monkeypatch.setattr(module, "available_memory", lambda: 10 * PAGE)
    arena = Arena()
    try:
        with pytest.raises(OutOfSharedMemory, match="batch_size"):
            arena.allocate(11 * PAGE)
        assert arena.in_use == 0
        arena.allocate(10 * PAGE)
    finally:
        arena.close()


def test_the_environment_names_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SHM_DIR", str(tmp_path))
    arena = Arena()
    assert arena.directory == str(tmp_path)
    assert os.fstat(arena.fd).st_dev == tmp_path.stat().st_dev
    arena.close()
