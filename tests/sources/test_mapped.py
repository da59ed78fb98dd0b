"""Which file some memory is of, and whether it can be read."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np

from headrace.sources.mapped import Maps, bring_in


def address(memory: object) -> int:
    return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])  # type: ignore[call-overload]


def test_memory_of_a_file_is_known_by_it(tmp_path: Path) -> None:
    path = tmp_path / "some data"
    path.write_bytes(bytes(3 * mmap.PAGESIZE))
    with path.open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        part = mmap.mmap(file.fileno(), mmap.PAGESIZE, access=mmap.ACCESS_READ, offset=mmap.PAGESIZE)
    maps = Maps()
    found, other = maps.find(address(whole) + 5), maps.find(address(part) + 7)
    assert found is not None and other is not None
    stat = path.stat()
    assert found.path == other.path == os.fsencode(path)
    assert found.version == other.version == b"%x.%x" % (stat.st_size, stat.st_mtime_ns)
    assert (found.offset, other.offset) == (5, mmap.PAGESIZE + 7)
    own = np.ones(10)
    assert maps.find(address(own)) is None and maps.find(0) is None and maps.find(1 << 62) is None
    os.utime(path, ns=(1, 1))
    changed = Maps().find(address(whole))
    assert changed is not None and changed.version != found.version
    (tmp_path / "new").write_bytes(b"another file of that name")
    (tmp_path / "new").replace(path)
    assert Maps().find(address(whole)) is None, "what is mapped is not what lies there"


def test_what_a_file_no_longer_has_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(4 * mmap.PAGESIZE))
    with path.open("rb") as file:
        whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = address(whole)
    assert bring_in(start + 100, 2 * mmap.PAGESIZE) is None
    os.truncate(path, mmap.PAGESIZE)
    assert bring_in(start + 10, mmap.PAGESIZE - 10) is None and bring_in(start, 0) is None
    failed = bring_in(start + mmap.PAGESIZE, 10)
    assert failed is not None and failed.errno == errno.EFAULT
    assert bring_in(address(np.ones(10)), 80) is None
