"""A cache's memory where a process may not map all of it."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace.cache import windows
from headrace.cache.windows import Windows
from headrace.core.sparse import PAGE
from tests.descriptors import open_fds

SPAN = 1 << 34
KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def fd() -> Iterator[int]:
    """The file of a cache."""
    made = os.memfd_create("headrace-test-windows")
    os.ftruncate(made, SPAN)
    yield made
    os.close(made)


def mapped(fd: int) -> int:
    """Bytes of the file that this process has mapped."""
    inode, total = str(os.fstat(fd).st_ino), 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split()
        if words[4] == inode and "headrace-test-windows" in line:
            start, end = (int(word, 16) for word in words[0].split("-"))
            total += end - start
    return total


@pytest.mark.parametrize("room", [None, 8 * SPAN, 64 * MIB, 0])
def test_what_is_written_is_what_others_read(
    fd: int, room: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "address_room", lambda: room)
    made = Windows(fd, SPAN)
    draw = np.random.default_rng(0)
    size = 16 * PAGE if not room else min(room // 16, 64 * MIB)
    places = [
        0,
        SPAN - 100,
        size - 50,
        3 * size - 1,
        5 * size,
        *(draw.integers(0, SPAN // 64, 60) * 64).tolist(),
    ]
    written = {}
    for offset in places:
        nbytes = int(min(draw.integers(1, 3 * PAGE), SPAN - offset))
        value = draw.bytes(nbytes)
        made.view(offset, nbytes)[:] = value
        written[offset] = value
        if room is not None and room < SPAN:
            assert mapped(fd) <= max(room // 4, 16 * PAGE)
    for offset, value in written.items():
        assert os.pread(fd, len(value), offset) == value == made.view(offset, len(value))
    assert len(made.view(SPAN, 0)) == 0
    for offset, nbytes in ((-1, 1), (0, SPAN + 1), (SPAN, 1), (0, -1), (-1, 0)):
        with pytest.raises(ValueError, match="outside of the cache"):
            made.view(offset, nbytes)
    before = open_fds()
    windowed = made._whole is None
    del made
    after = open_fds()
    assert mapped(fd) == 0 and after <= before and len(before - after) >= windowed


def test_what_was_handed_out_stays_mapped(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "address_room", lambda: MIB)
    made = Windows(fd, SPAN)
    views = [made.view(number * MIB, 64) for number in range(20)]
    for number, view in enumerate(views):
        view[:] = bytes([number]) * 64
    for number in range(20):
        assert made.view(number * MIB, 64) == bytes([number]) * 64
    del views, view
    assert mapped(fd) <= MIB // 4


def test_threads_share_windows(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "address_room", lambda: MIB)
    made = Windows(fd, SPAN)
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(200):
            at = (turn % 17) * 100 * KIB + 64 * number
            view = made.view(at, 64)
            view[:] = bytes([number]) * 64
            if made.view(at, 64) != bytes([number]) * 64:
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_where_nothing_can_be_mapped_it_is_said_once(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, offset: int, nbytes: int) -> memoryview:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(windows, "address_room", lambda: MIB)
    monkeypatch.setattr(windows, "address_limit", lambda: 1 << 30)
    made = Windows(fd, SPAN)
    monkeypatch.setattr(windows, "map_file", refuse)
    with pytest.warns(UserWarning, match=r"the limit of 1.0 GiB \(ulimit -v\)"), pytest.raises(ValueError):
        made.view(0, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="cannot be mapped"):
            made.view(0, 10)
