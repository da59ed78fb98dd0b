"""Steps of an epoch over ranks, and what a rank tells a new host of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinate.members import Rank, read_progress, write_progress
from headrace.core.bits import Bits
from headrace.core.errors import ProtocolError
from headrace.core.forms import Form
from tests.coordinate.jobs import Member, World


@given(
    size=st.integers(1, 200),
    seen=st.sets(st.integers(0, 199)),
    steps=st.dictionaries(
        st.integers(0, 50), st.lists(st.integers(0, 199), min_size=1, max_size=9), max_size=4
    ),
)
def test_progress_is_read_as_it_was_written(size: int, seen: set[int], steps: dict[int, list[int]]) -> None:
    inside = sorted(sample for sample in seen if sample < size)
    data = write_progress(Bits.of(size, inside), {n: np.array(ids, np.int64) for n, ids in steps.items()})
    again, read = read_progress(data, size)
    assert again.ids().tolist() == inside
    assert {number: ids.tolist() for number, ids in read.items()} == steps


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 16,
        Bits.empty(70).tobytes() + np.array([-1, 1, 0]).tobytes(),
        Bits.empty(70).tobytes() + np.array([0, 0]).tobytes(),
        Bits.empty(70).tobytes() + np.array([0, -1]).tobytes(),
        Bits.empty(70).tobytes() + np.array([0, 1 << 62, 5]).tobytes(),
        Bits.empty(70).tobytes() + np.array([0, (1 << 63) - 1, 5]).tobytes(),
    ],
    ids=["beyond the samples", "step before the first", "empty step", "negative", "long", "longest"],
)
def test_progress_that_cannot_be_is_an_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_progress(data, 70)


@given(cut=st.integers(1, 40))
def test_progress_that_is_cut_off_is_an_error(cut: int) -> None:
    data = write_progress(Bits.of(70, [1, 69]), {3: np.array([5, 6, 7])})
    assert len(data) == 16 + 40
    if cut == 40:
        assert read_progress(data[:-cut], 70)[1] == {}
    else:
        with pytest.raises(ProtocolError):
            read_progress(data[:-cut], 70)


@pytest.mark.parametrize("length", [-1, -(2**62), 2, 2**62])
def test_progress_with_a_length_that_cannot_be_is_an_error(length: int) -> None:
    data = Bits.empty(10).tobytes() + np.array([0, length, 4], np.int64).tobytes()
    with pytest.raises(ProtocolError):
        read_progress(data, 10)


@pytest.mark.parametrize("step", [-1, 10])
def test_progress_with_samples_that_do_not_exist_is_an_error(step: int) -> None:
    world = World()
    member = Member(world, np.arange(10))
    with pytest.raises(ProtocolError):
        member.begin(0, write_progress(Bits.empty(10), {0: np.array([step])}), 1)


def test_a_rank_that_begins_again_starts_the_epoch_afresh_for_all() -> None:
    world = World()
    ranks = [Member(world, np.arange(24), batch=4, group="g", rank=rank, world_size=2) for rank in range(2)]
    for rank in ranks:
        rank.begin(0)
        rank.ask()
        world.settle()
    ranks[0].begin(0)
    ranks[0].ask()
    ranks[1].begin(0)
    world.drain()
    assert len(ranks[0].got) == len(ranks[1].got) == 3
    assert sorted(i for rank in ranks for part in rank.got for i in part.tolist()) == list(range(24))


def test_fewer_samples_than_ranks_are_repeated() -> None:
    world = World()
    ranks = [Member(world, np.arange(2), batch=4, group="g", rank=rank, world_size=3) for rank in range(3)]
    for rank in ranks:
        rank.begin(0)
    world.drain()
    assert [len(rank.got) for rank in ranks] == [1, 1, 1]
    assert {i for rank in ranks for i in rank.got[0].tolist()} == {0, 1}


def test_a_rank_counts_what_it_gets() -> None:
    rank = Rank(1, "t", 0, 0)
    for now in (1.0, 2.0, 3.0, 4.0, 5.0):
        rank.count(np.array([0, 3, 3, 2], np.uint8), now)
    assert rank.samples == 20
    assert rank.hits[Form.AUGMENTED] == 10 and rank.hits[Form.DECODED] == 5 and rank.hits[Form.ENCODED] == 0
    assert rank.rate == 4.0
