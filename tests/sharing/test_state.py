"""States of loaders whose samples the shared host draws: the rest of the epoch is exact wherever it goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sharing.driver import assert_exact
from tests.sharing.fixtures import Start


def rest(epochs: list[dict[str, Any]]) -> list[list[int]]:
    """The batches of the first epoch."""
    batches: list[list[int]] = epochs[0]["batches"]
    return batches


@pytest.mark.parametrize("sampling", ["auto", "opportunistic", "dependent", "uniform"])
def test_another_process_goes_on_in_the_middle_of_an_epoch(start: Start, sampling: str) -> None:
    data, loader = {"size": 300, "augment": "stamp"}, {"sampling": sampling}
    beside = start(data=data, loader=loader, epochs=4)
    first = start(data=data, loader=loader, epochs=2, act_in=1, save_at=6, leave=True)
    saved = first.until("state")
    first.wait()
    state = json.loads(json.dumps(saved["state"]))
    second = start(data=data, loader={**loader, "batch_size": 10}, state=state, epochs=2)
    second.end()
    assert_exact(saved["batches"] + rest(second.epochs()), range(300))
    assert_exact(second.epochs()[1]["batches"], range(300))
    beside.end()
    beside.check()


def test_a_state_between_two_epochs_is_that_of_a_whole_epoch(start: Start) -> None:
    data = {"size": 96}
    saved = start(data=data, save_at=6, hold=True)
    state = saved.until("state")["state"]
    again = start(data=data, state=state, epochs=1)
    again.end()
    got = [sample for event in again.epochs() for batch in event["batches"] for sample in batch]
    assert got == [] or sorted(got) == list(range(96))
    saved.until("holding")
    saved.tell()
    saved.end()


def test_the_job_itself_goes_on_after_its_state_was_read(start: Start) -> None:
    job = start(data={"size": 200, "augment": "stamp"}, epochs=2, save_at=5)
    job.end()
    job.check()


@pytest.mark.parametrize("sampling", ["auto", "dependent"])
def test_two_ranks_go_on(start: Start, sampling: str) -> None:
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29512"}
    spec = {"data": {"size": 300}, "loader": {"sampling": sampling}}
    ranks = [start({**place, "RANK": str(rank)}, **spec, save_at=4, leave=True) for rank in range(2)]
    saved = [rank.until("state") for rank in ranks]
    for rank in ranks:
        rank.wait()
    place["MASTER_PORT"] = "29513"
    later = [
        start({**place, "RANK": str(rank)}, **spec, state=saved[rank]["state"], epochs=2) for rank in range(2)
    ]
    for job in later:
        job.end()
    batches = [event["batches"] for event in saved] + [rest(job.epochs()) for job in later]
    assert_exact([batch for part in batches for batch in part], range(300))
    assert_exact(later[0].epochs()[1]["batches"] + later[1].epochs()[1]["batches"], range(300))
