"""Files with more addresses than bytes."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
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


LIMITED = """
import os
import subprocess
import sys
import resource
from headrace.core import sparse
from headrace.core.memory import address_room, total_memory

fd = os.memfd_create("limited")
resource.setrlimit(getattr(resource, {kind!r}), ({limit}, resource.RLIM_INFINITY))
span = sparse.make_addresses(fd)
assert span == os.fstat(fd).st_size
print(span >= total_memory(), span, address_room())
"""


@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_FSIZE"])
def test_limits_of_a_process_leave_a_cache_addresses(kind: str) -> None:
    code = LIMITED.format(kind=kind, limit=1 << 30)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    enough, span, room = done.stdout.split()
    if kind == "RLIMIT_AS":
        assert enough == "True" and 0 < int(room) < 1 << 30, "others may map all of it"
    else:
        assert 1 << 29 <= int(span) <= 1 << 30 and room == "None"


def test_where_files_may_hardly_be_longer_than_nothing_it_is_said() -> None:
    code = LIMITED.format(kind="RLIMIT_FSIZE", limit=1000)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "OutOfSharedMemory" in done.stderr and "ulimit -f" in done.stderr
