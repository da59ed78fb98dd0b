"""Sources whose samples are made up and whose storage has a set speed."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from headrace.core.errors import OptionError
from headrace.sources import synthetic


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only sleeping moves; holds the time."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


def test_content_is_a_pure_function_of_the_index() -> None:
    one, other = (
        synthetic(100, bytes_per_sample=64),
        synthetic(50, bytes_per_sample=64, latency=0.0, classes=3),
    )
    assert one.read_many([3, 7]) == other.read_many([3, 7]) == [one.content(3), one.content(7)]
    assert len({one.content(index) for index in range(100)}) == 100
    assert int.from_bytes(one.content(42)[:8], "little") == 42
    assert all(len(one.content(index)) == 64 for index in range(100))


def test_lengths_may_vary_by_sample() -> None:
    source = synthetic(400, bytes_per_sample=(10, 20))
    lengths = [len(blob) for blob in source.read_many(range(400)) if isinstance(blob, bytes)]
    assert set(lengths) == set(range(10, 21))
    assert lengths == [len(source.content(index)) for index in range(400)]
    assert len(synthetic(2, bytes_per_sample=3).content(1)) == 3


def test_each_read_takes_the_latency(clock: list[float]) -> None:
    source = synthetic(10, latency=0.5)
    source.read_many([1, 2, 3])
    assert clock[0] == pytest.approx(101.5)


def test_bandwidth_is_shared_by_all_threads(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    source = synthetic(10, bytes_per_sample=1000, bandwidth=10_000)
    ends: list[float] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: ends.append(clock[0] + seconds))
    threads = [threading.Thread(target=source.read_many, args=([index],)) for index in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ends) == pytest.approx([100.1, 100.2, 100.3, 100.4, 100.5])


def test_latency_and_bandwidth_overlap(clock: list[float]) -> None:
    source = synthetic(10, bytes_per_sample=1000, bandwidth=10_000, latency=0.05)
    source.read_many([0, 1])
    assert clock[0] == pytest.approx(100.2)
    clock[0] += 10
    source.read_many([0])
    assert clock[0] == pytest.approx(110.3)


def test_a_fork_in_the_middle_of_a_read_leaves_no_lock_behind() -> None:
    source = synthetic(4, bytes_per_sample=10, bandwidth=1e9)
    with source._pipe.lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if source.read_many([0]) == [source.content(0)] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_targets_and_fingerprints() -> None:
    source = synthetic(5, classes=2)
    assert source.targets is not None
    assert source.targets.tolist() == [0, 1, 0, 1, 0]
    assert synthetic(5).targets is None
    assert source.fingerprint() == synthetic(5, latency=1, bandwidth=3).fingerprint()
    assert source.fingerprint() != synthetic(6, classes=2).fingerprint()
    assert source.fingerprint() != synthetic(5, bytes_per_sample=7).fingerprint()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 0}, "at least one"),
        ({"bytes_per_sample": 0}, "positive"),
        ({"bytes_per_sample": (5, 4)}, "least, greatest"),
        ({"latency": -1}, "negative"),
        ({"bandwidth": 0}, "positive"),
        ({"classes": 0}, "positive"),
    ],
)
def test_options_that_cannot_be_obeyed_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        synthetic(**{"size": 5, **options})


def test_indices_are_checked() -> None:
    with pytest.raises(IndexError, match=r"0\.\.4"):
        synthetic(5).read_many([5])
