"""Storage whose speed is known is found to have about that speed. Sleeping takes no CPU, so load matters little; one
measurement of a few has to show what it could hide."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import headrace as hr
from headrace.measure.storage import THREAD_COUNTS, Storage, measure_storage
from headrace.sources import Source


def measure(source: Source, seconds: float = 0.6) -> Storage | None:
    ticks: list[int] = []
    found = measure_storage(source, list(range(len(source))), seconds, lambda: ticks.append(1))
    assert len(ticks) == len(THREAD_COUNTS)
    return found


def test_latency_is_found_and_threads_hide_it() -> None:
    for _ in range(4):
        found = measure(hr.synthetic.source(1000, latency=0.005, bytes_per_sample=500))
        assert found is not None
        assert [reading.threads for reading in found.cold] == list(THREAD_COUNTS)
        alone, eight = found.cold[0], found.cold[3]
        assert 0.005 <= alone.median <= alone.p99
        assert alone.samples <= 200
        if alone.samples > 40 and eight.samples > 2 * alone.samples:
            break
    else:
        pytest.fail("eight threads were never seen to read more than twice as much as one")
    assert alone.bytes == pytest.approx(500 * alone.samples)
    # No files, and no faster the second time: this is what storage is like, and not memory.
    assert found.dropped is None and not found.from_memory
    assert found.bandwidth == max(reading.bytes for reading in found.cold)
    assert found.cpu < 0.005


def test_bandwidth_is_found_whatever_the_number_of_threads() -> None:
    for _ in range(3):
        found = measure(hr.synthetic.source(1000, bandwidth=2e6, bytes_per_sample=20_000), 1.2)
        assert found is not None and found.bandwidth is not None
        assert found.bandwidth < 3e6
        if found.bandwidth > 0.6e6:
            return
    pytest.fail("storage was never seen to be a third as fast as it is")


def test_files_are_dropped_and_read_twice(photos: Path) -> None:
    source = hr.folder(photos)
    found = measure(source)
    assert found is not None and found.dropped is True
    sizes = [os.path.getsize(source.name(index)) for index in range(len(source))]
    for reading in [*found.cold, *found.warm]:
        assert min(sizes) <= reading.bytes / reading.samples <= max(sizes)
    assert (found.bandwidth is None) == found.from_memory


def test_files_that_never_leave_memory_tell_nothing_of_storage(photos: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        pytest.skip("there is no file system in memory here")
    place = shared / f"headrace-test-{os.getpid()}"
    place.mkdir()
    try:
        for path in photos.rglob("*.jpg"):
            (place / path.name).write_bytes(path.read_bytes())
        verdicts = [measure(hr.folder(place, labels=False)) for _ in range(3)]
        assert any(found is not None and found.from_memory and found.bandwidth is None for found in verdicts)
    finally:
        for path in place.iterdir():
            path.unlink()
        place.rmdir()


def test_samples_that_cannot_be_read_do_not_count(photos: Path) -> None:
    source = hr.folder(photos)
    os.unlink(source.name(0))
    found = measure(source)
    assert found is not None and all(reading.samples > 0 for reading in found.cold)
    for index in range(1, len(source)):
        os.unlink(source.name(index))
    assert measure(source) is None


class Raising:
    """A source that raises instead of returning errors."""

    encoded, targets = True, None

    def __len__(self) -> int:
        return 4

    def read_many(self, indices: object) -> list[bytes | BaseException]:
        raise ConnectionError("storage is away")

    def name(self, index: int) -> str:
        return str(index)

    identity = name

    def fingerprint(self) -> str:
        return "raising"


def test_a_source_that_raises_is_not_measured() -> None:
    assert measure(Raising()) is None
