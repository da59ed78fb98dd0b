"""Numbering of samples across datasets that overlap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinate.universe import Universe
from headrace.core.errors import ProtocolError
from tests.coordinate.jobs import identities

LISTS = st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=25), min_size=1, max_size=5)


@given(LISTS)
def test_samples_keep_their_numbers_and_duplicates_get_their_own(lists: list[list[int]]) -> None:
    universe = Universe()
    numbers: dict[int, int] = {}
    taken: dict[int, int] = {}
    for at, samples in enumerate(lists):
        dataset = universe.add(str(at), "", identities(np.array(samples)))
        ids = dataset.to_universe(np.arange(len(samples)))
        assert len(set(ids.tolist())) == len(samples) == dataset.size
        assert dataset.to_local(ids).tolist() == list(range(len(samples)))
        assert sorted(ids.tolist()) == dataset.bits(universe.size).ids().tolist()
        seen = set()
        for sample, number in zip(samples, ids.tolist(), strict=True):
            if sample not in seen:
                assert numbers.setdefault(sample, number) == number, "known by this number before"
                seen.add(sample)
            assert taken.setdefault(number, sample) == sample, "a number stands for one sample"
    assert sorted(taken) == list(range(universe.size)), "no number is left out"


@given(LISTS)
def test_samples_of_other_datasets_have_no_local_index(lists: list[list[int]]) -> None:
    universe = Universe()
    datasets = [universe.add(str(at), "", identities(np.array(part))) for at, part in enumerate(lists)]
    everything = np.arange(universe.size)
    for dataset in datasets:
        known = set(dataset.bits(universe.size).ids().tolist())
        local = dataset.to_local(everything).tolist()
        assert [at for at, index in enumerate(local) if index >= 0] == sorted(known)
        assert set(local) - {-1} == set(range(dataset.size))


def test_identities_that_agree_in_one_half_are_different_samples() -> None:
    universe = Universe()
    table = identities(np.arange(4)).view(np.uint64).reshape(-1, 2).copy()
    table[:, 0] = 5
    first = universe.add("a", "", table.view(np.uint8).reshape(-1, 16))
    assert universe.size == 4
    table[:, 1] += 100
    universe.add("b", "", table.view(np.uint8).reshape(-1, 16))
    assert universe.size == 8
    assert first.to_local(np.arange(8)).tolist() == [0, 1, 2, 3, -1, -1, -1, -1]


def test_datasets_in_the_universes_order_need_no_tables() -> None:
    universe = Universe()
    assert universe.add("a", "", identities(np.arange(10))).nbytes == 0
    assert universe.add("b", "", identities(np.arange(6))).nbytes == 0
    other = universe.add("c", "", identities(np.arange(9, -1, -1)))
    other.to_local(np.arange(10))
    assert other.nbytes > 0


@pytest.mark.parametrize("indices", [[-1], [0, 6], [1 << 40]])
def test_indices_outside_are_an_error(indices: list[int]) -> None:
    universe = Universe()
    for at, samples in enumerate((np.arange(6), np.arange(6)[::-1])):
        dataset = universe.add(str(at), "", identities(samples))
        with pytest.raises(ProtocolError):
            dataset.to_universe(np.array(indices))
