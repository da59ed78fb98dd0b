"""How much of the decoding a device gets: as much as pays, and never so much that training is slower for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.device_share import DeviceShare


@dataclass
class Job:
    """Rates of a job, in rows a second."""

    cpus: float
    device: float
    loop: float
    lost: float
    """Seconds of the device that training loses for each row that it decodes."""
    storage: float = 1e9

    def pace(self, share: float) -> float:
        return min(
            self.cpus / (1 - share) if share < 1 else 1e9,
            self.device / share if share else 1e9,
            1 / (1 / self.loop + self.lost * share),
            self.storage,
        )

    def waits(self, share: float) -> float:
        """The part of its time for which the loop waits."""
        return max(0.0, 1 - self.pace(share) * (1 / self.loop + self.lost * share))

    @property
    def best(self) -> float:
        return max(self.pace(share) for share in np.linspace(0, 1, 257).tolist())


def run(job: Job, share: DeviceShare, windows: int, noise: float = 0.0, seed: int = 0) -> list[float]:
    """The pace of each window."""
    dice, paces = np.random.default_rng(seed), []
    for _ in range(windows):
        pace = job.pace(share.share)
        paces.append(pace)
        seen = pace * float(np.exp(noise * dice.standard_normal()))
        share.note(seen, 1.0, job.waits(share.share))
    return paces


jobs = st.builds(
    Job,
    cpus=st.floats(1e3, 3e4),
    device=st.floats(500, 3e4),
    loop=st.floats(1e3, 5e4),
    lost=st.floats(0, 3e-4),
    storage=st.sampled_from([1e9, 4e3]),
)


@given(jobs)
def test_it_finds_what_is_nearly_the_best(job: Job) -> None:
    paces = run(job, DeviceShare(), 400)
    late = paces[100:]
    assert np.mean(late) >= 0.93 * job.best
    assert np.median(late) >= 0.94 * job.best


@given(jobs)
def test_training_is_not_slower_for_it(job: Job) -> None:
    paces = run(job, DeviceShare(), 400)
    assert np.median(paces) >= 0.995 * job.pace(0)
    assert np.mean(paces) >= 0.97 * job.pace(0), "also with all that was tried in vain"


@given(jobs)
def test_a_loop_that_has_enough_leaves_nothing_to_the_device(job: Job) -> None:
    job.cpus = 1.1 * job.loop
    job.storage = 1e9
    share = DeviceShare()
    run(job, share, 50)
    assert share.share == 0


def test_where_storage_is_short_the_device_cannot_help() -> None:
    job, share = Job(cpus=5000, device=9000, loop=20_000, lost=0, storage=3000), DeviceShare()
    run(job, share, 300)
    assert share.share <= 1 / 8


def test_it_follows_a_job_that_changes() -> None:
    share = DeviceShare()
    slow, fast = Job(6000, 8000, 30_000, 1e-6), Job(6000, 8000, 5000, 1e-6)
    assert np.median(run(slow, share, 100)[50:]) > 1.9 * slow.pace(0)
    run(fast, share, 200)
    assert share.share == 0, "the loop has enough without it"
    assert np.median(run(slow, share, 200)[100:]) > 1.9 * slow.pace(0)


@given(st.integers(0, 2**32 - 1))
def test_noise_leads_it_astray_for_a_while_only(seed: int) -> None:
    job, share = Job(cpus=11_800, device=15_400, loop=40_000, lost=2e-6), DeviceShare()
    paces = run(job, share, 600, noise=0.02, seed=seed)
    assert np.mean(paces[60:]) >= 0.85 * job.best


def test_the_first_measurement_after_a_change_says_nothing() -> None:
    share = DeviceShare()
    assert share.note(1000, 1.0, 0.5) > 0
    first = share.share
    assert share.note(1, 1.0, 0.9) == first
    share.note(2000, 1.0, 0.5)
    assert share.share > first


def test_windows_of_no_time_are_none() -> None:
    share = DeviceShare()
    for _ in range(5):
        share.note(0, 0.0, 0.0)
    assert share.share == 0
