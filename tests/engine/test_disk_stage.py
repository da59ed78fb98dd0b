"""The disk tier in a worker: what goes wrong there is no reason to stop, and what passes is tried again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.cache.arena import Arena
from headrace.cache.disk import LEAST, DiskTier, lock
from headrace.coordinate.messages import Order
from headrace.engine import disk_stage
from headrace.engine.ahead import AheadCopies
from headrace.engine.board import Board
from headrace.engine.disk_stage import DiskStage, DiskUse
from headrace.engine.rows import RowStages
from headrace.engine.store import LocalStore
from headrace.planning import Spent
from headrace.sources.simulated import SyntheticSource
from tests.engine.rig import CountingSource

Ahead = tuple[RowStages, DiskStage, CountingSource]


def stage(path: Path, source: Any) -> DiskStage:
    return DiskStage(DiskUse(DiskTier(str(path), LEAST, b"o" * 16), True, 0.0, "", len(source)), source)


def source_of(size: int = 400) -> SyntheticSource:
    return SyntheticSource(size, 100, 100, None, 0.0, None, None)


def test_a_tier_whose_lock_was_kept_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.02)
    monkeypatch.setattr(disk_stage, "_AGAIN", 0.0)
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    disk = stage(tmp_path, source_of())
    names = disk.names(np.arange(3))
    with pytest.warns(UserWarning, match="is not used: .* its lock"):
        assert disk.find(names) == [None] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert disk.find(names) == [None] * 3, "said once"
        os.close(fd)
        disk.keep_encoded(names, [b"0", b"1", b"2"], [False] * 3)
        assert None not in disk.find(names)
    disk.close()


def test_samples_need_no_names_while_nothing_of_them_is_moved(tmp_path: Path) -> None:
    tier = DiskTier(str(tmp_path), LEAST, b"o" * 16)
    assert stage(tmp_path, source_of()).in_use
    measured = DiskStage(DiskUse(tier, False, 1.0, "key", 400, measured=True), source_of())
    assert measured.in_use, "it is not known how large decoded samples are"
    measured.keep_decoded({str(row).encode(): np.zeros((64, 64, 3), np.uint8) for row in range(8)})
    assert not measured.in_use, "nor what it takes to decode them"
    measured.saw(Spent(prepared=64, decoded=64, decode=1.0, cpu=1.0, fetched=64, fetched_bytes=64e3))
    assert measured.in_use, "it pays"
    measured.close()


@pytest.fixture
def ahead(tmp_path: Path) -> Iterator[Ahead]:
    """Stages that have looked ahead for samples 0 to 7, of which the tier has the first four; which turned out not to
    pay then."""
    source = CountingSource([b"x"] * 16)
    use = DiskUse(DiskTier(str(tmp_path), LEAST, b"o" * 16), False, 1.0, "key", 16, measured=True)
    disk = DiskStage(use, source)
    with contextlib.closing(Arena()) as arena, contextlib.closing(Board(arena)) as board:
        stages = RowStages(source, arena, board, LocalStore(None), None, disk=disk)
        names = disk.names(np.arange(4))
        disk.keep_decoded({name: np.full((64, 64, 3), row, np.uint8) for row, name in enumerate(names)})
        disk.saw(Spent(prepared=64, decoded=64, decode=1.0, cpu=1.0, fetched=64, fetched_bytes=64.0))
        assert stages.look_ahead(np.arange(8)) == [4, 5, 6, 7]
        disk.saw(Spent(prepared=256, from_disk=256, augment=1e6))
        assert not disk._pays(tries=True)
        yield stages, disk, source
    disk.close()


def test_what_was_looked_ahead_is_used_even_if_no_more_is_moved(ahead: Ahead) -> None:
    stages, disk, source = ahead
    for samples in ([0, 1, 4], [2, 3, 5, 6, 7]):
        fetched = stages.fetch(Order(0, 0, 0, 0, 0, 0, 0, 0, np.array(samples, np.int64).tobytes()), None)
        for sample, value in zip(samples, fetched.work.inputs, strict=True):
            assert value == b"x" if sample >= 4 else (value == sample).all()
    assert source.reads == [4, 5, 6, 7]
    assert not disk.in_use, "all of it was used"


def test_nothing_that_was_looked_ahead_stays(ahead: Ahead) -> None:
    """Its orders may have ended; others are looked ahead for."""
    stages, disk, _ = ahead
    assert stages.look_ahead(np.arange(8, 12)) == [0, 1, 2, 3]
    assert not disk.in_use
    assert disk.find(disk.names(np.arange(4))) == [None] * 4


class Broken(SyntheticSource):
    """Raises as it is asked what some samples are."""

    def identity(self, index: int) -> str:
        if index == 160:
            raise RuntimeError("no identity")
        return super().identity(index)


def order(sequence: int, samples: np.ndarray[Any, Any], batch: int) -> Order:
    later = {"later": samples.tobytes(), "later_batch": batch}
    return Order(
        id=sequence,
        slot_offset=0,
        slot_bytes=0,
        rows=0,
        start=0,
        seed=0,
        epoch=0,
        step=0,
        indices=b"",
        sequence=sequence,
        **later,
    )


def copies_of(source: Any, disk: DiskStage, wanted: int) -> tuple[AheadCopies, threading.Event]:
    """Copies that tell once so many samples were copied."""
    copies, seen, enough = AheadCopies(source, disk), [0], threading.Event()

    def report(spent: Spent) -> None:
        seen[0] += spent.fetched
        if seen[0] >= wanted:
            enough.set()

    copies.report = report
    return copies, enough


def test_what_goes_wrong_ahead_of_need_does_not_end_it(tmp_path: Path) -> None:
    source = Broken(400, 100, 100, None, 0.0, None, None)
    disk = stage(tmp_path, source)
    disk.keep_encoded([b"x" * 16], [b"y" * 100], [False])  # (of what size samples are)
    copies, enough = copies_of(source, disk, 16)
    copies.claimed(order(0, np.arange(160, 168), 20))
    copies.idle()
    copies.claimed(order(1, np.arange(168, 184), 19))
    copies.idle()
    assert enough.wait(20)
    copies.close()
    disk.close()


def test_what_is_copied_as_it_ends_is_released(tmp_path: Path) -> None:
    """Also of a worker that lives on."""
    source = source_of()
    disk = stage(tmp_path, source)
    disk.keep_encoded([b"x" * 16], [b"y" * 100], [False])
    own = disk._disk()
    assert own is not None
    copies = AheadCopies(source, disk)
    released: list[int] = []
    done = threading.Event()

    def keeps(samples: Any) -> int | None:
        copies.close()
        return own.put_ahead([(b"k" * 16, [b"content"])])

    def release(numbers: list[int], before: Callable[[list[int]], None] = disk.release) -> None:
        before(numbers)
        released.extend(numbers)
        if numbers:
            done.set()

    disk.keep_ahead, disk.release = keeps, release  # type: ignore[method-assign, assignment]
    copies.claimed(order(0, np.arange(8), 32))
    copies.idle()
    assert done.wait(20)
    assert len(released) == 1 and own._room._taken_ahead() == 0
    disk.close()
