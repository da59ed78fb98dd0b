"""Jobs that may have few addresses (``ulimit -v``, as clusters set it), fewer than the machine has memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headrace as hr
from headrace.host import control
from tests.sharing.driver import ROOT

COUNT = 300
JOB = """
import resource
import sys
import torch
import headrace as hr
from tests.sharing.test_address_limits import COUNT, recipe

if __name__ == "__main__":
    # What torch takes is no part of what is left: a build for CUDA gigabytes, its allocator one with a first tensor.
    torch.rand(1 << 20)
    workers, share, more = int(sys.argv[1]), sys.argv[2] == "share", int(sys.argv[3])
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + more, resource.RLIM_INFINITY))
    options = {"batch_size": 20, "shuffle": True, "cache": "64MiB", "share": share}
    with hr.DataLoader(recipe(), num_workers=workers, **options) as loader:
        for _ in range(2):
            seen = [target for _, targets in loader for target in targets.tolist()]
            assert sorted(seen) == list(range(COUNT))
        stats = loader.stats()
    print(stats.hits, stats.decoded if share else stats.fetched_samples)
"""


def recipe() -> hr.Recipe:
    """Of 12 KB a sample."""
    return hr.Recipe(hr.synthetic.source(COUNT, shape=(64, 64, 3), classes=COUNT), hr.synthetic.decode())


def run(workers: int, share: str, more: int = 1 << 30) -> tuple[int, int]:
    """A job that may have a gigabyte of addresses more than it has at its start: its hits, and what it prepared."""
    found = subprocess.run(
        [sys.executable, "-c", JOB, str(workers), share, str(more)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    hits, prepared = found.stdout.split()
    return int(hits), int(prepared)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_jobs_own_cache_works(workers: int) -> None:
    hits, fetched = run(workers, "own")
    assert hits >= COUNT and fetched < 1.2 * COUNT


@pytest.mark.parametrize("workers", [0, 1])
def test_so_does_a_host_that_such_a_job_starts(place: Path, workers: int) -> None:
    hits, prepared = run(workers, "share")
    assert hits >= COUNT and prepared <= COUNT


@pytest.mark.parametrize("workers", [0, 1])
def test_such_a_job_shares_with_a_host_of_more_addresses_than_it_can_map(place: Path, workers: int) -> None:
    with hr.DataLoader(
        recipe(), batch_size=30, shuffle=True, share=True, cache="64MiB", num_workers=0
    ) as loader:
        assert sum(len(targets) for _, targets in loader) == COUNT
        hits, prepared = run(workers, "share")
        assert prepared == 0 and hits >= 2 * COUNT, "all was there"
        status = control.status()
        assert status is not None and len(status.jobs) == 1
