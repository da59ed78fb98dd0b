"""DistributedDataParallel by torchrun, with gloo: ranks that die and come back, other numbers of ranks, uneven ends.

``job.py`` runs several kinds of loaders in lockstep, so that each launch tests all of them: a recipe's by itself,
with ``share=True`` in both ways to draw, a torch dataset and a recipe with torch's DistributedSampler, and a torch
dataset with ``rank=`` and ``world_size=``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.runs import Launch, Notes, torchrun

OWN = ["recipe", "auto", "uniform", "divided"]
"""Those that divide by themselves: each sample comes once."""
TORCHS = ["torch", "sampled"]
"""Those with torch's sampler, which repeats samples so that all ranks have equally many."""
KINDS = [*OWN, *TORCHS]
FOREVER: list[str] = [kind for kind in KINDS if kind != "auto"]
"""Those whose order is a matter of seed and epoch, and not of what is cached."""

pytestmark = pytest.mark.usefixtures("place")


def spec(size: int, batch_size: int, epochs: int, **more: Any) -> dict[str, Any]:
    return {"kinds": KINDS, "size": size, "batch_size": batch_size, "epochs": epochs, "told": TORCHS} | more


def padding(samples: int, ranks: int) -> int:
    """What torch's sampler repeats."""
    return -samples % ranks


def check_end(notes: Notes) -> list[Any]:
    """All ranks made the same steps and have the same weights, of the right samples; the weights."""
    assert len(notes.ends) == len(notes.ranks)
    steps = [
        [(line["epoch"], line["step"]) for line in notes.steps(rank)] for rank in range(len(notes.ranks))
    ]
    assert all(mine == steps[0] for mine in steps)
    assert all(end["weights"] == notes.ends[0]["weights"] for end in notes.ends)
    assert not sum(line["wrong"] for rank in range(len(notes.ranks)) for line in notes.steps(rank))
    return notes.ends[0]["weights"]  # type: ignore[no-any-return]


def assert_epoch(got: Counter[int], size: int, repeated: int = 0) -> None:
    """Every sample came, and so many of them once more."""
    assert set(got) == set(range(size))
    assert got.total() == size + repeated and max(got.values()) <= (2 if repeated else 1)


@pytest.mark.slow
def test_a_rank_that_is_killed_comes_back_with_its_state(tmp_path: Path) -> None:
    """And so do all others, as torchrun does it. The shared host lives on, or is killed, too."""
    size, ranks, steps = 53, 2, 7
    plan = spec(size, 4, 2)
    plain = Launch("plain", ranks, plan | {"compare": True})  # whose state it is makes no difference
    killed = {
        # The last checkpoint is of two steps before.
        3: Launch("middle", ranks, plan | {"every": 3, "kill": {"rank": 1, "step": 5}}, restarts=1),
        # All of an epoch was delivered.
        7: Launch("end", ranks, plan | {"kill": {"rank": 0, "step": 7}}, restarts=1),
        10: Launch(
            "host", ranks, plan | {"every": 5, "kill": {"rank": 1, "step": 11, "host": True}}, restarts=1
        ),
        # There was no checkpoint.
        0: Launch("early", ranks, plan | {"every": 5, "kill": {"rank": 0, "step": 4}}, restarts=1),
    }
    assert torchrun(tmp_path, plain, *killed.values()) == [[0]] * 5
    uninterrupted = Notes(tmp_path, plain)
    weights = check_end(uninterrupted)
    for saved, launch in killed.items():
        before, after = Notes(tmp_path, launch, 0), Notes(tmp_path, launch, 1)
        assert check_end(after) == weights
        assert [line["step"] for line in after.steps(0)] == list(range(saved + 1, 2 * steps + 1))
        for kind in KINDS:
            for epoch in range(2):
                got = before.samples(kind, epoch, saved) + after.samples(kind, epoch)
                assert_epoch(got, size, padding(size, ranks) if kind in TORCHS else 0)
        for rank in range(ranks):
            mine = [line["got"] for line in before.steps(rank, saved) + after.steps(rank)]
            for kind in FOREVER:
                there = [line["got"][kind] for line in uninterrupted.steps(rank)]
                assert [got[kind] for got in mine] == there, kind


@pytest.mark.slow
@pytest.mark.parametrize("drop_last", [False, True])
def test_other_numbers_of_ranks_go_on_in_the_middle_of_an_epoch(tmp_path: Path, drop_last: bool) -> None:
    """From four ranks to two, and from those to three, without and with their host."""
    size, batch_size = 101, 4
    first = 6 if drop_last else 7  # steps of an epoch with four ranks
    plan = spec(size, batch_size, 3, told=[*TORCHS, "recipe"] if drop_last else TORCHS, drop_last=drop_last)
    launches = [
        Launch("four", 4, plan | {"kill": {"rank": 3, "step": first + 2}}, run="one"),
        Launch("two", 2, plan | {"kill": {"rank": 0, "step": first + 5, "host": True}}, run="one"),
        Launch("three", 3, plan, run="one"),
    ]
    assert torchrun(tmp_path, *launches) == [[1], [1], [0]]
    four, two, three = (Notes(tmp_path, launch) for launch in launches)
    check_end(three)
    left = size - 2 * 4 * batch_size - 3 * 2 * batch_size
    for kind in KINDS:
        whole, divided, last = four.samples(kind, 0), Counter[int](), three.samples(kind, 2)
        for notes, saved in ((four, first + 2), (two, first + 5), (three, None)):
            divided += notes.samples(kind, 1, saved)
        if drop_last:
            assert set(whole.values()) == set(divided.values()) == set(last.values()) == {1}, kind
            dropped = [size % 16, left % 12, size % 12]
            assert [size - got.total() for got in (whole, divided, last)] == dropped, kind
            continue
        for got, samples, ranks in ((whole, size, 4), (divided, left, 3), (last, size, 3)):
            assert_epoch(got, size, padding(samples, ranks) if kind in TORCHS else 0)


@pytest.mark.slow
def test_torchrun_goes_on_by_itself_with_the_machines_that_are_left(tmp_path: Path) -> None:
    """One of two is lost, with its agent and its ranks. (A host cannot draw for several: no ``"auto"`` here.)"""
    size, saved = 101, 3
    plan = spec(size, 4, 2, kinds=FOREVER, kill={"rank": 3, "step": saved, "machine": True})
    launch = Launch("lost", 2, plan, restarts=1, machines=2)
    (statuses,) = torchrun(tmp_path, launch)
    assert sorted(statuses) == [-9, 0]
    before, after = Notes(tmp_path, launch, 0, ranks=4), Notes(tmp_path, launch, 1)
    check_end(after)
    for kind in FOREVER:
        got = before.samples(kind, 0, saved) + after.samples(kind, 0)
        assert_epoch(got, size, padding(size - saved * 16, 2) if kind in TORCHS else 0)
        assert_epoch(after.samples(kind, 1), size, padding(size, 2) if kind in TORCHS else 0)


@pytest.mark.slow
def test_every_rank_has_a_batch_in_every_step(tmp_path: Path) -> None:
    """Whatever is left at the end. Samples are repeated only where fewer are left than there are ranks, and no sample
    of an earlier step could be spared."""
    cases = {
        "spared": (13, 4, 3, 2, 0),  # 12 and 1: the first step leaves two of its samples to the second
        "single": (10, 1, 4, 3, 2),  # 4, 4 and 2: batches of one have nothing to spare
        "few": (3, 2, 4, 1, 1),  # less than one for each
        "even": (16, 2, 4, 2, 0),
    }
    launches = {name: Launch(name, case[2], spec(case[0], case[1], 2)) for name, case in cases.items()}
    assert torchrun(tmp_path, *launches.values()) == [[0]] * len(cases)
    for name, (size, batch_size, ranks, steps, repeated) in cases.items():
        notes = Notes(tmp_path, launches[name])
        check_end(notes)
        assert notes.ends[0]["length"] == [steps] * len(KINDS)
        for kind in KINDS:
            for epoch in range(2):
                shares = [notes.epoch(kind, epoch, rank) for rank in range(ranks)]
                assert {len(share) for share in shares} == {steps}, kind
                sizes = [[len(share[step]) for share in shares] for step in range(steps)]
                assert all(min(step) > 0 and max(step) <= batch_size for step in sizes), kind
                if kind in OWN:
                    assert all(max(step) - min(step) <= 1 for step in sizes), kind
                expected = padding(size, ranks) if kind in TORCHS else repeated
                assert_epoch(notes.samples(kind, epoch), size, expected)
