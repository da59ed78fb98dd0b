"""The disk tier where others do what they should not: stop while they hold its lock, die, remove its folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headrace.cache.disk import LEAST, DiskTier, OpenDisk, lock, look_at, remove_all, room, table
from tests.cache.disk_samples import OTHER, OWNER, get, key_of, put
from tests.cache.test_disk import bytes_of, opened


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.05)


@contextlib.contextmanager
def locked_by_another(path: Path) -> Iterator[None]:
    """As by a process that was stopped: it will not let go."""
    fd = os.open(path / "lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)


def put_small(disk: OpenDisk, *numbers: int) -> int:
    return disk.put_many([(key_of(number), [b"%d" % number]) for number in numbers])


def get_small(disk: OpenDisk, *numbers: int) -> list[bool]:
    found = disk.get_many([key_of(number) for number in numbers])
    for number, content in zip(numbers, found, strict=True):
        assert content is None or content == b"%d" % number
    return [content is not None for content in found]


@pytest.mark.usefixtures("impatient")
def test_a_lock_that_is_not_given_back_is_not_waited_for(tmp_path: Path) -> None:
    with opened(tmp_path) as disk, opened(tmp_path) as other:
        put(disk, 1)
        number = disk.put_ahead([(key_of(2), [b"two"])])
        assert number is not None
        with locked_by_another(tmp_path):
            assert get(disk, 1) == [True] and put(disk, 1) == 0, "what needs no lock goes on"
            assert put(other, 3) == 0 and not other.has_room
            assert not other.has_room_ahead(1) and other.put_ahead([(key_of(4), [b"four"])]) is None
            disk.release([number])
            with pytest.raises(TimeoutError):
                DiskTier(str(tmp_path), LEAST, OTHER).open()
        assert disk.get_many([key_of(2)]) != [None]
        disk.release([])
        assert disk.get_many([key_of(2)]) == [None], "what could not be released is released later"
        other._not_before = 0.0
        assert put(other, 3) == 1


def test_once_it_was_not_given_back_nobody_waits_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as disk:
        monkeypatch.setattr(lock, "PATIENCE", 0.05)
        with locked_by_another(tmp_path):
            put(disk, 1)
            monkeypatch.setattr(lock, "PATIENCE", 10_000.0)  # whoever waited would wait for long
            for number in range(2, 5):
                disk._not_before = 0.0
                assert put(disk, number) == 0
        disk._not_before = 0.0
        assert put(disk, 1) == 1


def test_threads_wait_for_each_other(tmp_path: Path) -> None:
    """However often one of them takes the lock that it has."""
    with opened(tmp_path) as disk:
        own = disk._room
        with own._locked():
            with own._locked():
                pass
            other = os.open(tmp_path / "lock", os.O_RDWR)
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(other)


def test_a_claim_is_made_under_the_lock_also_after_the_table_grew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as one, opened(tmp_path) as two:
        put(one, 1)
        one._room._table.larger(one._room._name)
        seen = []

        def enters(self: table.Table, *args: Any, **options: Any) -> int:
            fd = os.open(tmp_path / "lock", os.O_RDWR)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                seen.append(False)
            except BlockingIOError:
                seen.append(True)
            os.close(fd)
            return enter(self, *args, **options)

        enter = table.Table.enter
        monkeypatch.setattr(table.Table, "enter", enters)
        assert two._claim(100) and seen == [True]


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_is_removed_is_no_error(tmp_path: Path, again: bool) -> None:
    """Also where another job makes it anew: what is there now is that one's alone."""
    path = tmp_path / "disk"
    with opened(path) as old, opened(path) as silent:
        put(old, *range(20))
        shutil.rmtree(path)
        new = DiskTier(str(path), LEAST, OWNER).open() if again else None
        if new is not None:
            put(new, *range(100, 120))
        for disk in (old, silent):
            for start in range(200, 1000, 50):  # more than one segment
                put(disk, *range(start, start + 50))
            assert disk.put_ahead([(key_of(5000), [b"?"])]) is None
            assert not disk.has_room
            disk.has_room_ahead(1)
            disk.release([4096])
            get(disk, *range(1000))
        if new is not None:
            assert all(get(new, *range(100, 120)))
            assert bytes_of(path) <= LEAST + 8192
            new.close()
        else:
            assert not path.exists()


def test_a_table_that_was_begun_anew_is_not_mixed_with_the_old_one(tmp_path: Path) -> None:
    with opened(tmp_path) as old:
        put(old, *range(20))
        with open(tmp_path / "table", "r+b") as file:
            file.write(b"?")
        with opened(tmp_path) as new:
            put(new, *range(100, 120))
            old._let_go()
            put(old, *range(200, 220))
            old.put_ahead([(key_of(5000), [b"?"])])
            assert all(get(new, *range(100, 120)))
            known = {f"{number:08x}" for number in new._room.table.segments["number"] if number}
            assert {one.name for one in (tmp_path / "segments").iterdir()} == known


def test_whoever_is_killed_while_the_table_grows_leaves_one_table(tmp_path: Path) -> None:
    """All processes go on with the same one, whenever it happens."""
    steps = ["create", "fill", "replace", "replaced"]
    with opened(tmp_path) as alive:
        put_small(alive, *range(20))
        for step in steps:
            child = os.fork()
            if not child:
                _die_in(step)
                disk = DiskTier(str(tmp_path), LEAST, OWNER).open()
                disk._room._table.larger(disk._room._name)
                os._exit(1)
            assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
            with opened(tmp_path) as fresh:
                assert alive._room.table.is_at(str(tmp_path / "table")), step
                assert not alive._room.table.superseded and not fresh._room.table.superseded
                assert all(get_small(alive, *range(20))) and all(get_small(fresh, *range(20)))
                put_small(alive, 100 + steps.index(step))
                assert get_small(fresh, 100 + steps.index(step)) == [True]


def _die_in(step: str) -> None:
    def die(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    create, replace = table.create, os.replace
    if step == "create":

        def created(*args: Any) -> Any:
            create(*args)
            die()

        table.create = created
    elif step == "fill":
        table.Table._fill = die  # type: ignore[method-assign]
    elif step == "replace":
        os.replace = die
    else:

        def replaced(*args: Any) -> Any:
            replace(*args)
            die()

        os.replace = replaced


def test_what_is_written_while_the_table_grows_is_found_in_the_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as one, opened(tmp_path) as two:
        put_small(one, 1)
        put_small(two, 2)
        threads = []
        replace = os.replace

        def replaces(*args: Any) -> None:
            late = threading.Thread(target=put_small, args=(two, 3))
            late.start()
            late.join(0.2)  # (it waits for the lock once it knows)
            threads.append(late)
            replace(*args)

        monkeypatch.setattr(os, "replace", replaces)
        monkeypatch.setattr(table, "_FULL", 0.0)
        with one._room._locked():
            one._room._table.larger(one._room._name)
        monkeypatch.undo()
        threads[0].join()
        assert get_small(one, 1, 2, 3) == [True] * 3


def test_a_table_that_finds_no_room_to_grow_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with opened(tmp_path) as disk:
        before = disk._room.table.nbytes
        monkeypatch.setattr(os, "posix_fallocate", full)
        for start in range(0, 1500, 50):
            put_small(disk, *range(start, start + 50))
        assert disk._room.table.nbytes == before and not disk._room.table.superseded
        assert sum(get_small(disk, *range(1500))) > 800
        assert not (tmp_path / "table.new").exists()


def test_jobs_of_one_dataset_do_not_shrink_each_other(tmp_path: Path) -> None:
    with opened(tmp_path, 2 * LEAST) as large:
        numbers = [number for number in range(900) if put(large, number)]
        with opened(tmp_path, LEAST) as small:
            assert small.budget == large.budget == 2 * LEAST, "the largest counts"
            assert all(get(large, *numbers)), "and nothing goes that a running job uses"
    with opened(tmp_path, LEAST) as small:
        assert small.budget == LEAST and small.taken <= LEAST


def test_a_table_that_is_too_large_for_a_smaller_budget_goes(tmp_path: Path) -> None:
    with opened(tmp_path, 1 << 30) as disk:
        for _ in range(3):
            with disk._room._locked():
                disk._room._current().larger(disk._room._name)
                disk._room._current()
        assert disk._room.table.nbytes > LEAST // 2
    with opened(tmp_path, LEAST) as disk:
        assert disk.taken < LEAST // 16
        assert put(disk, *range(20)) == 20


def test_what_is_reserved_is_not_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others are about to write is not there for a second time: the rest of the file system is not ours."""
    seen = SimpleNamespace(f_bavail=400, f_frsize=1 << 10, f_blocks=1 << 12)
    with contextlib.ExitStack() as stack:
        disks = [stack.enter_context(opened(tmp_path)) for _ in range(4)]
        monkeypatch.setattr(os, "statvfs", lambda _: seen)
        assert [put_small(disk, number) for number, disk in enumerate(disks)] == [1, 0, 0, 0]


def test_the_table_leaves_others_their_part_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as disk:
        put_small(disk, 0)
        before = disk._room.table.nbytes
        seen = SimpleNamespace(f_bavail=100, f_frsize=1 << 10, f_blocks=1 << 12)
        monkeypatch.setattr(os, "statvfs", lambda _: seen)
        for start in range(1, 1001, 50):
            put_small(disk, *range(start, start + 50))
        assert disk._room.table.nbytes == before


def test_a_row_whose_process_died_before_its_file_was_there_is_free(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        table_ = disk._room.table
        number = table_.enter(7, 1 << 20, os.urandom(16), 0.0, ahead=True)
        with disk._room._locked():
            disk._room._sweep()
        assert int(table_.segments[7]["number"]) != number and disk._room._taken_ahead() == 0


def test_rows_that_were_left_half_written_are_free(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        put(disk, *range(5))
        rows = disk._room.table.segments
        rows[9]["reserved"], rows[9]["ahead"] = 5 << 20, 1  # (a removal that was cut off after the number)
        rows[11]["number"], rows[11]["reserved"] = 4096 + 12, 5 << 20  # (a number of another row)
    with opened(tmp_path) as disk:
        assert disk.taken < 2 << 20 and disk._room._taken_ahead() == 0
        assert all(get(disk, *range(5)))


def test_a_sample_that_comes_twice_is_kept_once(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        assert put(disk, 1, 2, 1, 1) == 2
        assert get(disk, 1, 1, 2) == [True] * 3


def test_a_sample_of_many_pieces_is_kept(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        pieces = [b"%d " % number for number in range(5000)]
        assert disk.put_many([(key_of(1), pieces)]) == 1
        assert disk.get_many([key_of(1)]) == [b"".join(pieces)]


def test_a_tier_that_is_in_use_is_not_emptied(tmp_path: Path) -> None:
    """Whatever else lies among its jobs."""
    with opened(tmp_path) as disk:
        put(disk, 1)
        (tmp_path / "jobs" / "0nothing").write_text("")
        (tmp_path / "jobs" / "00").mkdir()
        found = look_at(str(tmp_path))
        assert found is not None and found.running == 1
        assert not remove_all(str(tmp_path)) and get(disk, 1) == [True]
    (tmp_path / "jobs" / "00").rmdir()
    assert remove_all(str(tmp_path))


def test_closing_lets_go_also_of_what_a_forked_process_has(tmp_path: Path) -> None:
    disk = DiskTier(str(tmp_path), LEAST, OTHER).open()
    put(disk, 1)
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.write(ready[1], b"!")
        os.close(done[1])
        os.read(done[0], 1)
        os._exit(0)
    try:
        os.read(ready[0], 1)
        disk.close()
        with opened(tmp_path) as other:
            assert other._room._owners() == {OWNER}
            assert other._room._take(int(np.max(other._room.table.segments["number"]))) is not None
    finally:
        for fd in (*ready, *done):
            os.close(fd)
        os.waitpid(child, 0)


def test_the_clock_may_go_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path, owner=OTHER) as other:
        old = [number for number in range(1000) if put(other, number)]
    monkeypatch.setattr(room.time, "time", lambda: 1000.0)
    with opened(tmp_path) as disk:
        assert put(disk, *range(2000, 2020)) == 20 and disk.taken <= LEAST
        assert any(get(disk, *old))


def test_whoever_is_killed_while_a_segment_goes_keeps_no_room(tmp_path: Path) -> None:
    with opened(tmp_path, owner=OTHER) as disk:
        put(disk, *range(100))
        before = disk.taken
    for call in ("unlink", "truncate", "ftruncate"):
        child = os.fork()
        if not child:
            room_ = DiskTier(str(tmp_path), LEAST, OWNER).open()._room
            with room_._locked():
                room_._settle()
                setattr(os, call, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
                room_._evict(int(np.flatnonzero(room_.table.segments["number"])[0]))
            os._exit(0)
        os.waitpid(child, 0)
        with opened(tmp_path) as disk:
            rows = disk._room.table.segments
            for row in rows[rows["number"] != 0]:
                assert os.stat(disk._room.segment_path(int(row["number"]))).st_size, call
    with opened(tmp_path) as disk:
        assert disk.taken < before


def test_what_is_copied_ahead_of_need_leaves_rows_to_what_stays(tmp_path: Path) -> None:
    with opened(tmp_path) as disk:
        room_ = disk._room
        kept = room_._hold(b"a" * 16)
        fcntl.flock(kept, fcntl.LOCK_EX)
        for row in range(table.ROWS // 2):
            room_.table.enter(row, 0, b"a" * 16, 0.0, ahead=True)
        assert disk.put_ahead([(key_of(1), [b"ahead"])]) is None
        assert put(disk, 1) == 1
        os.close(kept)
