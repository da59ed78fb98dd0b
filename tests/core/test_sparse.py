"""Files with more addresses than bytes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pytest

from headrace.core import sparse
from headrace.core.memory import total_memory

PAGE = mmap.PAGESIZE


@pytest.fixture
def fd() -> Iterator[int]:
    """A file in memory."""
    number = os.memfd_create("headrace-test")
    yield number
    os.close(number)


def test_addresses_are_plenty_and_cost_nothing(fd: int) -> None:
    span = sparse.make_addresses(fd)
    assert span >= total_memory() and os.fstat(fd).st_size == span
    assert sparse.resident(fd) == 0
    os.pwrite(fd, b"x" * 10, span - 10)
    assert 0 < sparse.resident(fd) <= 2 * PAGE


def test_fewer_addresses_where_a_process_can_map_no_more(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    most = total_memory() * 3

    class Small(mmap.mmap):
        def __new__(cls, number: int, length: int) -> Small:
            if length > most:
                raise OSError("no room")
            return super().__new__(cls, number, length)

    monkeypatch.setattr(sparse.mmap, "mmap", Small)
    assert total_memory() <= sparse.make_addresses(fd) <= most


def test_whole_pages_are_given_back_and_nothing_beside_them(fd: int) -> None:
    os.ftruncate(fd, 10 * PAGE)
    os.pwrite(fd, b"x" * (10 * PAGE), 0)
    sparse.punch(fd, 2 * PAGE - 1, 5 * PAGE + 1)
    assert sparse.resident(fd) == 7 * PAGE
    content = os.pread(fd, 10 * PAGE, 0)
    assert content == b"x" * (2 * PAGE) + bytes(3 * PAGE) + b"x" * (5 * PAGE)
    sparse.punch(fd, 6 * PAGE + 1, 7 * PAGE)
    assert sparse.resident(fd) == 7 * PAGE, "no page lies within"


def test_what_cannot_be_given_back_is_an_error() -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(OSError):
            sparse.punch(write, 0, PAGE)
    finally:
        os.close(read)
        os.close(write)
