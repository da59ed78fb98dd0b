"""Jobs that have something in common, and not everything: other augmentations, other decodes, other datasets."""

from __future__ import annotations

import pytest

from headrace.host import control
from tests.sharing.driver import Job
from tests.sharing.fixtures import Start


def samples_of(form: str) -> list[int]:
    """Samples on each shelf of a form."""
    status = control.status()
    assert status is not None
    return sorted(shelf.samples for shelf in status.shelves if shelf.form == form)


def one_after_the_other(*jobs: Job) -> None:
    """Jobs that were started with ``wait`` and ``hold``: each begins when the one before it has had its epochs."""
    for job in jobs:
        job.until("waiting")
        job.tell()
        job.until("holding")
        job.check()


def let_go(*jobs: Job) -> None:
    for job in jobs:
        job.tell()
        job.end()


def test_other_augmentations_share_what_is_decoded(start: Start) -> None:
    jobs = [
        start(data={"size": 200, "augment": name}, wait=True, hold=True) for name in ("stamp", "other", "")
    ]
    one_after_the_other(*jobs)
    (shelved,) = samples_of("decoded")
    assert shelved == 200
    assert [job.stats["decoded"] for job in jobs] == [200, 0, 0]
    let_go(*jobs)


@pytest.mark.parametrize("sampling", ["auto", "opportunistic", "dependent"])
def test_other_augmentations_at_once(start: Start, sampling: str) -> None:
    jobs = [
        start(data={"size": 250, "augment": name}, loader={"sampling": sampling}, epochs=3)
        for name in ("stamp", "other", "stamp")
    ]
    for job in jobs:
        job.end()
        job.check()


def test_other_decodes_share_what_is_encoded(start: Start) -> None:
    data = {"size": 200, "latency": 0.001}
    jobs = [
        start(data={**data, "decode": name}, epochs=2, loader={"split": [0.5, 0.5, 0]})
        for name in ("", "hand")
    ]
    for job in jobs:
        job.end()
        job.check()
    assert len(samples_of("decoded")) == 2
    assert samples_of("encoded") != [0]


@pytest.mark.parametrize("sampling", ["auto", "opportunistic", "dependent", "uniform"])
def test_a_subset_and_overlapping_datasets_at_once(start: Start, sampling: str) -> None:
    windows = [{"size": 300}, {"size": 100, "start": 50}, {"size": 250, "start": 200}]
    jobs = [
        start(data={**window, "augment": "stamp"}, loader={"sampling": sampling}, epochs=3)
        for window in windows
    ]
    for job in jobs:
        job.end()
        job.check()


def test_a_subset_finds_what_the_whole_prepared(start: Start) -> None:
    whole = start(data={"size": 300}, wait=True, hold=True)
    part = start(data={"size": 100, "start": 50}, wait=True, hold=True)
    over = start(data={"size": 200, "start": 200}, wait=True, hold=True)
    one_after_the_other(whole, part, over)
    assert [job.stats["decoded"] for job in (whole, part, over)] == [300, 0, 100]
    (shelved,) = samples_of("decoded")
    assert shelved == 400
    let_go(whole, part, over)


def test_datasets_with_nothing_in_common(start: Start) -> None:
    jobs = [start(data={"size": 150, "start": at}, epochs=2) for at in (0, 1000)]
    for job in jobs:
        job.end()
        job.check()
    # (a sample that is still being prepared when the next epoch begins is waited for, but not for ever)
    assert all(150 <= job.stats["decoded"] <= 158 for job in jobs)


def test_samplings_side_by_side(start: Start) -> None:
    jobs = [
        start(data={"size": 250, "augment": "stamp"}, loader={"sampling": sampling}, epochs=3)
        for sampling in ("auto", "opportunistic", "dependent", "uniform")
    ]
    for job in jobs:
        job.end()
        job.check()
