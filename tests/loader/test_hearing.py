"""Which epoch runs, after what trainers told: a pure decider."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.loader.hearing import Hearing
from headrace.loader.own_order import Told, pass_on
from headrace.loader.state import VERSION, LoaderState


class Foreign:
    """A sampler of a trainer's, which remembers the epoch that it was told."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def state(epoch: int) -> LoaderState:
    return LoaderState(version=VERSION, seed=1, epoch=epoch, position=8, size=24, sampling="uniform")


class Loader:
    """What a loader does with its hearing, and nothing else."""

    def __init__(self, *samplers: Foreign) -> None:
        self.told, self.samplers = Told(), samplers
        self.hearing = Hearing(self.told, samplers)
        self.epoch = self.hearing.first

    def run(self, resume: LoaderState | None = None) -> int:
        asked = self.hearing.follow(resume, self.samplers)
        if asked is not None:
            self.epoch, resume = asked
        elif resume is not None:
            self.epoch = resume.epoch
        epoch, self.epoch = self.epoch, self.epoch + 1
        if resume is not None and asked is None:
            self.hearing.resumed(epoch)
        self.hearing.begin(epoch, self.samplers, foreign=bool(self.samplers))
        if resume is not None:
            pass_on(epoch, *self.samplers)  # as the state says
        self.hearing.begun(self.samplers)
        return epoch


def test_untold_epochs_count_up() -> None:
    loader = Loader()
    assert [loader.run() for _ in range(3)] == [0, 1, 2]


def test_a_sampler_that_nobody_tells_anew_stops_nothing() -> None:
    loader = Loader(Foreign(5))
    assert [loader.run() for _ in range(3)] == [5, 6, 7]


@given(st.integers(0, 9), st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_a_trainer_that_counts_from_its_own_start_gets_the_epochs_after_the_state(
    saved: int, untold: list[int]
) -> None:
    """Also where it leaves some untold: never one twice, never one left out."""
    loader, found = Loader(), []
    resume: LoaderState | None = state(saved)
    for more in untold:
        loader.told.tell(len(found))
        found.append(loader.run(resume))
        found += [loader.run() for _ in range(more)]
        resume = None
    assert found == list(range(saved, saved + len(found)))


@given(st.integers(0, 9), st.integers(1, 12))
def test_so_does_one_that_tells_its_own_sampler(saved: int, epochs: int) -> None:
    sampler = Foreign()
    loader = Loader(sampler)
    resume: LoaderState | None = state(saved)
    for count in range(epochs):
        sampler.set_epoch(count)
        assert loader.run(resume) == saved + count
        assert sampler.epoch == saved + count, "it gives the order of the epoch that runs"
        resume = None


@pytest.mark.parametrize("told", [4, 7])
def test_a_trainer_that_is_past_the_state_begins_its_own_epoch(told: int) -> None:
    loader = Loader()
    loader.told.tell(told)
    assert loader.run(state(3)) == told
    assert loader.run() == told + 1


def test_the_loader_itself_has_the_last_word() -> None:
    sampler = Foreign()
    loader = Loader(sampler)
    sampler.set_epoch(1)
    assert loader.run(state(6)) == 6
    loader.hearing.tell(2, loader.samplers, foreign=True)
    loader.epoch = 2
    assert sampler.epoch == 2
    assert [loader.run(), loader.run()] == [2, 3]
    sampler.set_epoch(9)
    assert loader.run() == 9


def test_a_sampler_put_in_anothers_place_is_heard() -> None:
    loader = Loader()
    assert loader.run() == 0
    loader.samplers = (Foreign(4),)
    assert loader.run() == 4
