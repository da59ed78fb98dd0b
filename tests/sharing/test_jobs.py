"""Jobs that run at once: every epoch of each is exact, whatever the others do."""

from __future__ import annotations

import os
import signal

import pytest

from headrace.host import control
from tests.loader.helpers import wait_until
from tests.sharing.driver import Job, assert_exact
from tests.sharing.fixtures import Start

SAMPLINGS = ["auto", "opportunistic", "dependent", "uniform"]


def finish(*jobs: Job) -> None:
    """Wait for all, then look at their epochs."""
    for job in jobs:
        job.end()
    for job in jobs:
        job.check()


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_three_jobs_each_get_every_sample_once_per_epoch(start: Start, sampling: str) -> None:
    jobs = [
        start(
            data={"size": 301, "augment": "stamp", "latency": 0.0005},
            loader={"sampling": sampling, "batch_size": batch},
            epochs=3,
        )
        for batch in (16, 7, 50)
    ]
    finish(*jobs)


def test_a_cache_with_room_for_a_part_only(start: Start) -> None:
    jobs = [
        start(data={"size": 400, "augment": "stamp"}, loader={"cache": 20_000}, epochs=3) for _ in range(2)
    ]
    finish(*jobs)
    status = control.status()
    assert status is not None and status.memory.used <= status.memory.budget


@pytest.mark.parametrize("sampling", ["auto", "dependent"])
def test_two_jobs_decode_once_what_both_need(start: Start, sampling: str) -> None:
    size, epochs = 300, 3
    jobs = [
        start(data={"size": size, "cost": 0.002}, loader={"sampling": sampling}, epochs=epochs, wait=True)
        for _ in range(2)
    ]
    for job in jobs:
        job.until("waiting")
    for job in jobs:
        job.tell()
    finish(*jobs)
    decoded = sum(job.stats["decoded"] for job in jobs)
    # (whoever is held up for longer than the other's patience is not waited for)
    assert size <= decoded <= 1.05 * size


def test_a_job_that_starts_later_finds_what_the_first_prepared(start: Start) -> None:
    first = start(data={"size": 200}, hold=True)
    first.until("holding")
    second = start(data={"size": 200})
    finish(second)
    assert second.stats["decoded"] == 0
    first.tell()
    finish(first)


def test_the_cache_outlives_the_job_that_filled_it(start: Start) -> None:
    first = start(data={"size": 200}, hold=True)
    first.until("holding")

    def all_cached() -> bool:  # reports of a job that has left would not be believed any more
        status = control.status()
        return status is not None and sum(shelf.samples for shelf in status.shelves) == 200

    assert wait_until(all_cached, 10), control.status()
    first.tell()
    finish(first)
    later = start(data={"size": 200})
    finish(later)
    assert later.stats["decoded"] == 0


def test_staggered_starts(start: Start) -> None:
    jobs = [start(data={"size": 300, "augment": "stamp"}, epochs=2, slow=0.01, pause_at=3)]
    for at in (5, 9):
        jobs[-1].until("paused")
        jobs.append(start(data={"size": 300, "augment": "stamp"}, epochs=2, pause_at=at))
        jobs[-2].tell()
    jobs[-1].until("paused")
    jobs[-1].tell()
    finish(*jobs)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_job_that_pauses_holds_nobody_up(start: Start, sampling: str) -> None:
    data = {"size": 300, "augment": "stamp"}
    slow = start(data=data, loader={"sampling": sampling}, pause_at=4, epochs=2)
    slow.until("paused")
    quick = start(data=data, loader={"sampling": sampling}, epochs=3)
    finish(quick)
    slow.tell()
    finish(slow)


@pytest.mark.parametrize("sampling", ["auto", "dependent"])
def test_a_job_that_is_stopped_with_its_workers_holds_nobody_up(start: Start, sampling: str) -> None:
    data = {"size": 400, "augment": "stamp", "latency": 0.001}
    slow = start(data=data, loader={"sampling": sampling}, pause_at=3, epochs=2)
    slow.until("paused")
    slow.tell()
    os.killpg(slow.pid, signal.SIGSTOP)
    quick = start(data=data, loader={"sampling": sampling}, epochs=2)
    try:
        finish(quick)
    finally:
        os.killpg(slow.pid, signal.SIGCONT)
    finish(slow)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_any_number_of_workers(start: Start, workers: int) -> None:
    jobs = [
        start(data={"size": 200, "augment": "stamp"}, loader={"num_workers": number}, epochs=2)
        for number in (workers, 1)
    ]
    finish(*jobs)


def test_spawned_workers(start: Start) -> None:
    jobs = [start(data={"size": 120, "augment": "stamp"}, epochs=2, spawn=spawn) for spawn in (True, False)]
    finish(*jobs)


def test_a_job_with_a_collate_function(start: Start) -> None:
    jobs = [
        start(data={"size": 200, "augment": "stamp"}, epochs=2, collate=collate) for collate in (True, False)
    ]
    finish(*jobs)


def test_dropping_the_last_batch(start: Start) -> None:
    jobs = [
        start(data={"size": 100, "augment": "stamp"}, loader={"batch_size": 16, "drop_last": drop}, epochs=2)
        for drop in (True, False)
    ]
    for job in jobs:
        job.end()
    jobs[1].check()
    for event in jobs[0].epochs():
        assert [len(batch) for batch in event["batches"]] == [16] * 6
        assert len({sample for batch in event["batches"] for sample in batch}) == 96


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_epoch_that_was_left_is_followed_by_a_whole_one(start: Start, sampling: str) -> None:
    jobs = [
        start(
            data={"size": 200, "augment": "stamp"},
            loader={"sampling": sampling},
            epochs=3,
            act_in=1,
            break_at=number,
        )
        for number in (3, 5)
    ]
    finish(*jobs)
    assert all(len(job.epochs()) == 2 for job in jobs)


def test_training_and_validation_of_one_job_at_once(start: Start) -> None:
    spec = {"data": {"size": 160}, "validation": {}, "interleaved": True, "epochs": 2}
    jobs = [start(**spec) for _ in range(2)]
    for job in jobs:
        job.end()
        for event in job.epochs("pairs"):
            assert_exact(event["train"], range(160))
            assert [sample for batch in event["validation"] for sample in batch] == list(range(160))


def test_validation_after_each_epoch(start: Start) -> None:
    job = start(data={"size": 160, "augment": "stamp"}, validation={"batch_size": 10}, epochs=3)
    job.end()
    job.check()
    for event in job.epochs("validation"):
        assert [sample for batch in event["batches"] for sample in batch] == list(range(160))
        assert event["bad"] == 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_two_ranks_share_each_epoch_out(start: Start, sampling: str) -> None:
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    spec = {"data": {"size": 300, "augment": "stamp"}, "loader": {"sampling": sampling}, "epochs": 3}
    ranks = [start({**place, "RANK": str(rank)}, **spec) for rank in range(2)]
    other = start(**spec)
    for job in ranks:
        job.end()
    finish(other)
    for one, two in zip(ranks[0].epochs(), ranks[1].epochs(), strict=True):
        assert one["bad"] == two["bad"] == 0
        assert len(one["batches"]) == len(two["batches"])
        got = [{sample for batch in event["batches"] for sample in batch} for event in (one, two)]
        assert got[0] | got[1] == set(range(300))
        assert not got[0] & got[1]


@pytest.mark.parametrize("sampling", ["auto", "dependent"])
def test_a_rank_that_comes_epochs_later_gets_its_part_of_each(start: Start, sampling: str) -> None:
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29515"}
    spec = {
        "data": {"size": 150, "augment": "stamp"},
        "loader": {"sampling": sampling},
        "epochs": 3,
        "hold": True,
    }
    early = start({**place, "RANK": "0"}, **spec)
    early.until("holding")
    late = start({**place, "RANK": "1"}, **spec)
    late.until("holding")
    for job in (early, late):
        job.tell()
        job.end()
    for one, two in zip(early.epochs(), late.epochs(), strict=True):
        # (as each rank gets as many, a sample may come twice at the very end)
        got = [sample for batch in one["batches"] + two["batches"] for sample in batch]
        assert set(got) == set(range(150)), f"epoch {one['number']}"
        assert len(got) == 150


@pytest.mark.parametrize(("sampling", "much_later"), [("auto", False), ("dependent", True)])
def test_a_rank_that_comes_when_the_other_has_left_gets_its_part_of_each(
    start: Start, sampling: str, much_later: bool
) -> None:
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29516"}
    spec = {"data": {"size": 150, "augment": "stamp"}, "loader": {"sampling": sampling}, "epochs": 2}
    early = start({**place, "RANK": "0", "HEADRACE_HOST_IDLE": "0" if much_later else "60"}, **spec)
    early.end()
    before = control.status()

    def left() -> bool:
        status = control.status()
        assert status is not None, "the host is gone, and with it what it knows"
        return not status.jobs and (not much_later or status.memory.budget == status.memory.used == 0)

    assert wait_until(left, 20), control.status()
    late = start({**place, "RANK": "1"}, **spec, hold=True)
    late.until("holding")
    after = control.status()
    assert before is not None and after is not None and before.pid == after.pid
    late.tell()
    late.end()
    assert not much_later or wait_until(lambda: control.status() is None, 20), "nobody else is to come"
    for one, two in zip(early.epochs(), late.epochs(), strict=True):
        assert one["bad"] == two["bad"] == 0
        assert_exact(one["batches"] + two["batches"], range(150), f"epoch {one['number']}")


def test_sharing_by_the_environment(start: Start) -> None:
    jobs = [start({"HEADRACE_SHARE": "1"}, data={"size": 150}, share=False, hold=True) for _ in range(2)]
    for job in jobs:
        job.until("holding")
    status = control.status()
    assert status is not None and {job.pid for job in status.jobs} == {job.pid for job in jobs}
    for job in jobs:
        job.tell()
    finish(*jobs)


@pytest.mark.parametrize("workers", [0, 2])
def test_uniform_sampling_gives_the_same_batches_as_without_sharing(start: Start, workers: int) -> None:
    spec = {"data": {"size": 200, "augment": "stamp"}, "epochs": 2}
    loader = {"seed": 5, "num_workers": workers}
    alone = start(**spec, share=False, loader=loader)
    shared = start(**spec, loader={**loader, "sampling": "uniform"})
    beside = start(**spec)
    finish(alone, shared, beside)
    assert alone.epochs() == shared.epochs()


def test_jobs_that_end_leave_only_the_cache(start: Start) -> None:
    finish(*[start(data={"size": 200, "augment": "stamp"}, epochs=2) for _ in range(2)])

    def empty() -> bool:
        status = control.status()
        assert status is not None
        return not status.jobs and not status.memory.granted

    assert wait_until(empty, 10), control.status()
