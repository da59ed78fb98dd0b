"""Samples that crash the process which prepares them: found out, named, and handled by the user's rule."""

import ctypes
import faulthandler
import os
import signal

import numpy as np
import pytest

import headrace as hr
from headrace.loader import staffing
from tests.faults.helpers import recipe
from tests.loader.helpers import flat, index_of, targets


def crash():
    """Read from address 0, without the report that pytest would print of it."""
    faulthandler.disable()
    ctypes.string_at(0)


def crashing(*victims):
    def decode(data):
        if index_of(data) in victims:
            crash()
        return np.frombuffer(data, np.uint8)[:16].copy()

    return decode


def make(decode, size=64, **options):
    options = {"batch_size": 16, "num_workers": 2, "seed": 1, **options}
    return hr.DataLoader(recipe(size, decode), **options)


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("victim", [0, 13, 63])
def test_skip_names_the_one_and_nobody_else(num_workers, victim):
    options = {"num_workers": num_workers, "on_error": "skip", "error_budget": 1}
    with make(crashing(victim), **options) as loader:
        for _ in range(2):
            assert flat(targets(loader)) == [index for index in range(64) if index != victim]
        (bad,) = loader.bad_samples
    assert (bad.index, bad.name) == (victim, f"synthetic:{victim}")
    assert "killed the worker" in bad.reason
    assert "SIGSEGV" in bad.reason


def test_neighbours_in_other_threads_are_not_blamed(monkeypatch):
    """Several threads of a worker prepare at once; which of them crashed it shows only when each runs alone."""
    monkeypatch.setattr(staffing, "cpus_per_rank", lambda: 8)
    threads = staffing.staff(8, 2, 0.0)
    monkeypatch.setattr(staffing, "staff", lambda *_, **__: threads)
    with make(crashing(5, 29), on_error="skip", error_budget=2, size=96) as loader:
        assert loader.stats().threads == 1
        assert flat(targets(loader)) == [index for index in range(96) if index not in (5, 29)]
        assert loader.stats().threads == 4
        assert [bad.index for bad in loader.bad_samples] == [5, 29]


def test_many_in_one_batch_are_all_found():
    victims = (3, 4, 5, 6, 7, 8, 40)
    with make(crashing(*victims), on_error="skip", error_budget=7) as loader:
        assert flat(targets(loader)) == [index for index in range(64) if index not in victims]
        assert sorted(bad.index for bad in loader.bad_samples) == list(victims)


@pytest.mark.parametrize("victim", [0, 13])
def test_raise_names_it(victim):
    with make(crashing(victim)) as loader, pytest.raises(hr.SampleError, match="SIGSEGV") as caught:
        list(loader)
    assert caught.value.bad.index == victim
    assert "killed the worker" in str(caught.value)


def test_substitute_fills_its_place():
    with make(crashing(13), on_error="substitute", error_budget=1) as loader:
        batches = targets(loader)
    assert [len(batch) for batch in batches] == [16] * 4
    assert set(flat(batches)) == set(range(64)) - {13}


def test_the_budget_holds_for_crashes_too():
    with (
        make(crashing(3, 20), on_error="skip", error_budget=1) as loader,
        pytest.raises(hr.TooManyBadSamples, match="killed the worker"),
    ):
        list(loader)


@pytest.mark.slow
def test_when_every_sample_crashes_the_loader_gives_up():
    with (
        make(crashing(*range(64)), on_error="skip", error_budget=64) as loader,
        pytest.raises((hr.TooManyBadSamples, hr.WorkerDied), match="killed"),
    ):
        list(loader)


@pytest.mark.parametrize("way", ["exit", "abort", "kill"])
def test_other_ways_to_die(way):
    def decode(data):
        if index_of(data) == 21:
            if way == "exit":
                os._exit(3)
            if way == "abort":
                faulthandler.disable()
                os.abort()
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(4)

    with make(decode, on_error="skip", error_budget=1) as loader:
        assert flat(targets(loader)) == [index for index in range(64) if index != 21]
        reason = loader.bad_samples[0].reason
    assert {"exit": "status 3", "abort": "SIGABRT", "kill": "SIGKILL"}[way] in reason


def test_a_crash_by_chance_is_not_held_against_a_sample(tmp_path):
    def decode(data):
        mark = tmp_path / f"{index_of(data)}"
        if index_of(data) % 10 == 3 and not mark.exists():
            mark.touch()
            crash()
        return np.zeros(4)

    with make(decode, shuffle=True) as loader:
        assert sorted(flat(targets(loader))) == list(range(64))
        assert loader.bad_samples == []
        assert loader.stats().restarts >= 1


def test_with_a_cache_a_crash_costs_nothing_else():
    with make(crashing(13), on_error="skip", error_budget=1, cache="1MiB") as loader:
        for _ in range(3):
            assert flat(targets(loader)) == [index for index in range(64) if index != 13]
        assert [bad.index for bad in loader.bad_samples] == [13]


def test_a_collated_batch_that_crashes_is_an_error():
    """A batch that one worker collates cannot be taken apart, so nobody can be named."""
    with make(crashing(21), collate_fn=lambda samples: [label for _, label in samples]) as loader:
        found = []
        with pytest.raises(hr.WorkerDied, match="Batch 1 of epoch 0"):
            for batch in loader:
                found += batch
        assert found == list(range(16))
