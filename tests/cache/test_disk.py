"""The disk tier: what is read is what was written, within its bytes, whoever else writes and whoever is killed."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cache.disk import LEAST, DiskTier, OpenDisk, records, room, table
from tests.cache.disk_samples import OTHER, OWNER, content_of, get, key_of, put


@contextlib.contextmanager
def opened(path: Path, budget: int = LEAST, owner: bytes = OWNER) -> Iterator[OpenDisk]:
    disk = DiskTier(str(path), budget, owner).open()
    try:
        yield disk
    finally:
        disk.close()


def bytes_of(path: Path) -> int:
    """Bytes that the files take on the disk, also while others write and remove some."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
    return total


def test_what_was_written_is_read_in_this_process_and_the_next(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        assert get(disk, *range(50)) == [False] * 50
        assert put(disk, *range(50)) == 50
        assert get(disk, *range(60)) == [True] * 50 + [False] * 10
        assert put(disk, *range(60)) == 10, "nothing is kept twice"
        assert disk.has_many([key_of(59), key_of(60)]) == [True, False]
        assert disk.get_many([]) == [] and disk.has_many([]) == [] and disk.put_many([]) == 0
    with opened(tmp_path) as disk:
        assert get(disk, *range(60)) == [True] * 60


def test_pieces_are_one_content(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        disk.put_many([(key_of(1), [b"abc", b"", memoryview(bytearray(b"def"))]), (key_of(2), [])])
        first, second = disk.get_many([key_of(1), key_of(2)])
        assert first == b"abcdef" and second == b""
        assert first is not None and first.readonly


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(0, 400_000), min_size=1, max_size=60), seed=st.integers(0, 99))
def test_the_budget_holds_and_what_was_kept_stays(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    path = tmp_path_factory.mktemp("disk")
    dice = random.Random(seed)
    contents = {key_of(at): dice.randbytes(size) for at, size in enumerate(sizes)}
    with opened(path, 4 << 20) as one, opened(path, 4 << 20) as two:
        kept: set[bytes] = set()
        for key, content in contents.items():
            disk = dice.choice((one, two))
            if disk.put_many([(key, [content])]):
                kept.add(key)
            assert one.taken <= 4 << 20 and bytes_of(path) <= (4 << 20) + 8192
        for disk in (one, two):
            for key, found in zip(contents, disk.get_many(list(contents)), strict=True):
                assert (found is not None) == (key in kept)
                assert found is None or found == contents[key]


def test_a_full_tier_has_what_it_has(tmp_path: Path) -> None:
    """Less than a hundredth of it is lost; what is there is not thrown out for what comes later."""
    with opened(tmp_path) as disk:
        numbers = [number for number in range(1000) if put(disk, number)]
        whole = sum(len(content_of(number)) for number in numbers)
        assert whole > 0.97 * (LEAST - table.table_bytes(7))
        assert not disk.has_room
        assert all(get(disk, *numbers))


def test_large_samples_have_segments_of_their_own(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        big = os.urandom(5 << 20)
        assert disk.put_many([(key_of(1), [big])]) == 1
        assert disk.put_many([(key_of(2), [os.urandom(40 << 20)])]) == 0
        assert disk.get_many([key_of(1), key_of(2)]) == [big, None]


def test_what_no_running_job_uses_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, owner=OTHER) as other:
        old = [number for number in range(1000) if put(other, number)]
        with opened(tmp_path) as disk:
            assert put(disk, *range(2000, 2020)) < 5 and all(get(other, *old)), "another job has them open"
    with opened(tmp_path) as disk:
        assert put(disk, *range(2000, 2020)) < 5 and all(get(disk, *old)), "they were read a moment ago"
    monkeypatch.setattr(room, "REST", 0.0)
    with opened(tmp_path) as disk:
        late = old[-20:]
        assert all(get(disk, *late)), "so these are not the first to go"
        put(disk, *range(2000, 2020))
        assert all(get(disk, *range(2000, 2020))) and all(get(disk, *late))
        assert not all(get(disk, *old))
        assert disk.taken <= LEAST


def test_a_smaller_budget_is_kept_from_the_next_start(tmp_path: Path) -> None:
    with opened(tmp_path, 2 * LEAST) as disk:
        numbers = [number for number in range(800) if put(disk, number)]
    with opened(tmp_path, LEAST) as disk:
        assert disk.budget == LEAST and disk.taken <= LEAST
        found = get(disk, *numbers)
        assert any(found) and not all(found)
        with opened(tmp_path, 2 * LEAST, OTHER) as other:
            assert disk.budget == other.budget == 2 * LEAST, "of jobs at a time, the largest counts"


@settings(max_examples=30)
@given(at=st.floats(0, 1), flips=st.integers(1, 255))
def test_a_flipped_bit_is_never_served(
    tmp_path_factory: pytest.TempPathFactory, at: float, flips: int
) -> None:
    path = tmp_path_factory.mktemp("disk")
    with opened(path) as disk:
        put(disk, *range(20))
        (segment, *_) = sorted((path / "segments").iterdir())
        data = bytearray(segment.read_bytes())
        where = min(int(at * len(data)), len(data) - 1)
        data[where] ^= flips
        segment.write_bytes(data)
        assert sum(get(disk, *range(20))) >= 19
        put(disk, *range(20))
        assert all(get(disk, *range(20))), "what is damaged is written anew"


@pytest.mark.parametrize("cut", [1, 40, 100, 5000])
def test_a_write_that_was_cut_off_is_never_served(tmp_path: Path, cut: int) -> None:
    with opened(tmp_path) as disk:
        put(disk, 1, 2, 3)
    (segment,) = (tmp_path / "segments").iterdir()
    with open(segment, "r+b") as file:
        file.truncate(segment.stat().st_size - cut)
    with opened(tmp_path) as disk:
        assert get(disk, 1, 2) == [True, True]
        assert get(disk, 3) == [len(content_of(3)) == 0]
        put(disk, 4)
        assert get(disk, 1, 2, 4) == [True, True, True]


def test_a_table_that_is_damaged_begins_anew(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        put(disk, *range(30))
    with open(tmp_path / "table", "r+b") as file:
        file.write(b"?")
    with opened(tmp_path) as disk:
        assert not any(get(disk, *range(30)))
        assert not list((tmp_path / "segments").iterdir()), "what nobody knows of is removed"
        assert put(disk, *range(30)) == 30 and all(get(disk, *range(30)))


def test_hints_that_lead_elsewhere_lead_nowhere(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        put(disk, *range(30))
        slots = disk._room.table._slots.reshape(-1)
        used = np.flatnonzero(slots["segment"])
        slots["offset"][used] = np.roll(slots["offset"][used], 1)
        assert sum(get(disk, *range(30))) <= 1
        put(disk, *range(30))
        assert all(get(disk, *range(30)))


def test_a_table_grows_with_what_is_in_it(tmp_path: Path) -> None:
    with opened(tmp_path) as one, opened(tmp_path) as two:
        before = one._room.table.nbytes
        for start in range(0, 6000, 50):
            disk = one if start % 100 else two
            disk.put_many([(key_of(at), [b"%d" % at]) for at in range(start, start + 50)])
        assert one._room.table.nbytes > before
        for disk in (one, two):
            found = disk.get_many([key_of(at) for at in range(6000)])
            assert [bytes(content or b"") for content in found] == [b"%d" % at for at in range(6000)]


def test_a_segment_that_goes_while_it_is_read_is_a_miss(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        put(disk, *range(10))
        assert all(get(disk, *range(10)))
        for segment in (tmp_path / "segments").iterdir():
            disk._room._remove(str(segment))
        assert not any(get(disk, *range(10)))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fails_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fails(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with opened(tmp_path) as disk:
        put(disk, 1)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwritev", fails)
            assert put(disk, 2, 3) == 0
        assert not disk.has_room
        assert put(disk, 2, 3) == 0, "for a while"
        disk._not_before = 0.0
        assert put(disk, 2, 3) == 2
        assert get(disk, 1, 2, 3) == [True] * 3


def test_what_a_dead_writer_left_is_written_on(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        put(disk, 1)
    for number in range(2, 6):
        with opened(tmp_path) as disk:
            put(disk, number)
    assert len(list((tmp_path / "segments").iterdir())) == 1
    with opened(tmp_path) as disk:
        assert all(get(disk, *range(1, 6)))


def put_ahead(disk: OpenDisk, *numbers: int) -> int | None:
    return disk.put_ahead([(key_of(number), [content_of(number, 9000)]) for number in numbers])


def test_what_is_copied_ahead_of_need_stays_until_it_is_released(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        kept = [number for number in range(1000) if put(disk, number)]
        assert not disk.has_room and disk.has_room_ahead(100_000), "a full tier has some room for it"
        numbers = [put_ahead(disk, *range(start, start + 5)) for start in range(2000, 2100, 5)]
        held = [number for number in numbers if number is not None]
        assert 2 < len(held) < 20, "and no more than some"
        assert not disk.has_room_ahead(100_000) and disk.taken <= LEAST
        wanted = [key_of(number) for number in range(2000, 2005)]
        assert [bytes(one or b"") for one in disk.get_many(wanted)] == [
            content_of(number, 9000) for number in range(2000, 2005)
        ]
        disk.release(held)
        disk.release(held)
        assert disk.get_many(wanted) == [None] * 5
        assert all(get(disk, *kept)), "nothing else goes"
        assert put_ahead(disk, 3000) is not None


def test_what_a_dead_process_copied_ahead_of_need_goes(tmp_path: Path) -> None:
    with opened(tmp_path) as alive:
        first = put_ahead(alive, 1)
        child = os.fork()
        if not child:
            disk = DiskTier(str(tmp_path), LEAST, OWNER).open()
            put_ahead(disk, 2)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        assert None not in alive.get_many([key_of(1), key_of(2)])
        with opened(tmp_path):
            pass
        assert alive.get_many([key_of(2)]) == [None]
        assert alive.get_many([key_of(1)]) != [None], "what others have is theirs"
        assert first is not None
        alive.release([first])
    assert not [one for one in (tmp_path / "jobs").iterdir() if one.name != OWNER.hex()]


def test_records_say_what_they_are(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    end = records.append(fd, 0, key_of(1), [b"one"])
    assert records.read(fd, 0, key_of(1), 3) == b"one"
    assert records.read(fd, 0, key_of(2), 3) is None
    assert records.read(fd, 0, key_of(1), 2) is None
    assert records.read(fd, end, key_of(1), 3) is None
    os.close(fd)
    assert records.read(fd, 0, key_of(1), 3) is None


WRITER = """
import random, sys, time
sys.path.insert(0, sys.argv[4])
from headrace.cache.disk import DiskTier, room, tier
from tests.cache.disk_samples import OTHER, OWNER, get, put
room.REST, tier._FULL = 0.0, 0.01
dice = random.Random(int(sys.argv[2]))
owner = (OWNER, OTHER)[int(sys.argv[3])]
print(flush=True)
while True:
    disk = DiskTier(sys.argv[1], 16 << 20, owner).open()
    for _ in range(dice.randrange(1, 40)):
        numbers = [dice.randrange(2000) for _ in range(dice.randrange(1, 20))]
        get(disk, *numbers)
        put(disk, *numbers)
    assert disk.taken <= 16 << 20
    disk.close()
"""


def kill_writers(path: Path, kills: int, at_once: int) -> None:
    """Processes that write, read and evict, of two datasets in turn, each killed at some moment."""
    dice = random.Random(7)
    root = str(Path(__file__).parents[2])
    running: list[subprocess.Popen[bytes]] = []
    errors = path.with_name("errors")
    with open(errors, "wb") as err:
        try:
            for number in range(kills):
                while len(running) < at_once:
                    owner = str((number // 10) % 2)
                    arguments = [str(path), str(dice.randrange(10**6)), owner, root]
                    command = [sys.executable, "-c", WRITER, *arguments]
                    running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err))
                time.sleep(dice.uniform(0.0, 0.3))
                victim = running.pop(dice.randrange(len(running)))
                assert victim.stdout is not None
                victim.stdout.readline()  # it has begun
                victim.stdout.close()
                time.sleep(dice.uniform(0.0, 0.1))
                victim.send_signal(signal.SIGKILL)
                assert victim.wait() == -signal.SIGKILL, errors.read_text()
                assert bytes_of(path) <= (16 << 20) + 65536
        finally:
            for process in running:
                assert process.stdout is not None
                process.stdout.close()
                process.kill()
                process.wait()
    assert not errors.read_text()
    with opened(path) as disk:
        assert disk.taken <= LEAST
        assert any(get(disk, *range(2000)))
        known = {f"{number:08x}" for number in disk._room.table.segments["number"] if number}
        assert {one.name for one in (path / "segments").iterdir()} == known
        assert {one.name for one in path.iterdir()} == {"jobs", "lock", "segments", "table"}


@pytest.mark.faults
def test_writers_that_are_killed_leave_nothing_wrong(tmp_path: Path) -> None:
    kill_writers(tmp_path / "disk", 8, 3)


@pytest.mark.faults
@pytest.mark.slow
def test_writers_that_are_killed_a_hundred_times_leave_nothing_wrong(tmp_path: Path) -> None:
    kill_writers(tmp_path / "disk", 100, 3)
