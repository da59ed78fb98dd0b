"""What a process has mapped of an arena: not without end, and never less than what somebody looks at."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.cache.arena import PAGE, Arena

RANGES = 2000


@pytest.fixture
def arena() -> Iterator[Arena]:
    """One with many ranges, each full of its number."""
    made = Arena()
    made.allocate(RANGES * PAGE)
    os.pwrite(made.fd, np.repeat(np.arange(RANGES, dtype=np.uint16), PAGE // 2).tobytes(), 0)
    yield made
    made.close()


def see(arena: Arena, number: int) -> Any:
    return np.frombuffer(arena.map(number * PAGE, PAGE), np.uint16)


def mapped(arena: Arena) -> int:
    """How many pages of the arena this process has mapped."""
    inode, total = str(os.fstat(arena.fd).st_ino), 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split()
        if words[4] == inode and "headrace" in line:
            start, end = (int(word, 16) for word in words[0].split("-"))
            total += (end - start) // PAGE
    return total


def few_stay_mapped(arena: Arena) -> None:
    for number in range(RANGES):
        assert (see(arena, number) == number).all()
        if number % 100 == 0:
            assert mapped(arena) <= 256
    assert mapped(arena) <= 256


def what_is_looked_at_stays(arena: Arena) -> None:
    views = {number: see(arena, number)[5:9] for number in range(0, RANGES, 50)}
    for number in range(RANGES):
        see(arena, number)
    assert mapped(arena) <= 256 + len(views)
    for number, view in views.items():
        assert (view == number).all()
        view[:] = 7777
        assert see(arena, number)[5] == 7777, "the same memory, mapped twice"
    views.clear()
    del view
    assert mapped(arena) <= 256


def what_is_used_again_and_again_stays(arena: Arena) -> None:
    first = arena.map(0, PAGE)
    for number in range(1, RANGES):
        see(arena, number)
        assert arena.map(0, PAGE) is first


def _run(work: Callable[[Arena], None], arena: Arena) -> None:
    work(arena)


@pytest.mark.parametrize("method", ["here", "fork", "spawn"])
@pytest.mark.parametrize(
    "work", [few_stay_mapped, what_is_looked_at_stays, what_is_used_again_and_again_stays]
)
def test_whoever_touches_many_ranges(arena: Arena, method: str, work: Callable[[Arena], None]) -> None:
    """The owner, which may free ranges, and workers, which nobody tells of that."""
    if method == "here":
        work(arena)
        return
    process = get_context(method).Process(target=_run, args=(work, arena))
    process.start()
    process.join(120)
    assert process.exitcode == 0


def test_threads_share_mappings(arena: Arena) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        numbers = np.random.default_rng(seed).integers(0, 700, 3000).tolist()
        wrong.extend(number for number in numbers if see(arena, number)[3] != number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and mapped(arena) <= 256 + len(threads)


def test_what_was_freed_is_unmapped_at_once(arena: Arena) -> None:
    before = mapped(arena)
    place = arena.allocate(3 * PAGE)
    arena.map(*place)
    assert mapped(arena) == before + 3
    arena.free(*place)
    assert mapped(arena) == before


CODE = """
    import resource
    import numpy as np
    from headrace.cache.arena import Arena
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + {room},) * 2)
    arena = Arena()
    offset, _ = arena.allocate({ranges} * {size}, reserve=False)
    views = []
    for number in range({ranges}):
        view = np.frombuffer(arena.map(offset + number * {size}, {size}), np.uint8)
        view[0] = number
        views = [*views, view][-{views}:]
    assert [int(view[0]) for view in views] == list(range({ranges}))[-{views}:]
    print(len(arena._maps))
"""


@pytest.mark.parametrize("views", [1, 4])
def test_few_addresses_are_enough_for_many_ranges(views: int) -> None:
    """Under ``ulimit -v``: together they are far more than may be mapped."""
    size, room = 64 << 20, 512 << 20
    code = textwrap.dedent(CODE).format(room=room, ranges=60, size=size, views=views)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60
