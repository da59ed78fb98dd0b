"""Jobs that may have few addresses (``ulimit -v``, as clusters set it), fewer than the machine has memory."""

from __future__ import annotations

import resource

import pytest
import torch

import headrace as hr
from headrace.host import control
from tests.sharing.fixtures import Start

COUNT = 300
MORE = 1 << 30


def recipe(latency: float = 0.0) -> hr.Recipe:
    """Of 12 KB a sample."""
    source = hr.synthetic.source(COUNT, shape=(64, 64, 3), classes=COUNT, latency=latency)
    return hr.Recipe(source, hr.synthetic.decode())


def job(workers: int, share: bool, latency: float = 0.0) -> tuple[int, int]:
    """A job that may have a gigabyte of addresses more than it has at its start: its hits, and what it prepared."""
    # What torch takes is no part of what is left: a build for CUDA gigabytes, its allocator one with a first tensor.
    torch.rand(1 << 20)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MORE, resource.RLIM_INFINITY))
    with hr.DataLoader(
        recipe(latency), batch_size=20, shuffle=True, cache="64MiB", share=share, num_workers=workers
    ) as loader:
        for _ in range(2):
            seen = [target for _, targets in loader for target in targets.tolist()]
            assert sorted(seen) == list(range(COUNT))
        stats = loader.stats()
    return stats.hits, stats.decoded if share else stats.fetched_samples


def run(start: Start, workers: int, share: bool, latency: float = 0.0) -> tuple[int, int]:
    """What such a job found."""
    one = start(call=[__name__, "job", workers, share, latency])
    hits, prepared = one.until("found")["value"]
    one.wait()
    return hits, prepared


@pytest.mark.parametrize("workers", [0, 1])
def test_a_jobs_own_cache_works(start: Start, workers: int) -> None:
    hits, fetched = run(start, workers, False)
    assert hits >= COUNT and fetched < 1.2 * COUNT


@pytest.mark.parametrize("share", [False, True], ids=["own", "shared"])
def test_slow_storage_is_read_by_as_many_threads_as_there_are_addresses_for(
    start: Start, share: bool
) -> None:
    hits, fetched = run(start, 1, share, latency=0.02)
    assert hits >= COUNT and fetched < 1.2 * COUNT


@pytest.mark.parametrize("workers", [0, 1])
def test_so_does_a_host_that_such_a_job_starts(start: Start, workers: int) -> None:
    hits, prepared = run(start, workers, True)
    assert hits >= COUNT and prepared <= COUNT


@pytest.mark.parametrize("workers", [0, 1])
def test_such_a_job_shares_with_a_host_of_more_addresses_than_it_can_map(start: Start, workers: int) -> None:
    with hr.DataLoader(
        recipe(), batch_size=30, shuffle=True, share=True, cache="64MiB", num_workers=0
    ) as loader:
        assert sum(len(targets) for _, targets in loader) == COUNT
        hits, prepared = run(start, workers, True)
        assert prepared == 0 and hits >= 2 * COUNT, "all was there"
        status = control.status()
        assert status is not None and len(status.jobs) == 1
