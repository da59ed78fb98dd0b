"""How an epoch is cut into batches and ranks: exactly once, equal numbers, resumable onto another geometry."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sampling import Draw, Geometry, UniformEpoch

SIZES = st.one_of(st.integers(0, 40), st.integers(0, 600))
BATCHES = st.integers(1, 17)
WORLDS = st.integers(1, 9)


def ranks_of(
    size: int, batch: int, world: int, drop_last: bool, position: int = 0, seed: int = 5
) -> list[list[Draw]]:
    """All draws of all ranks, from ``position`` to the end."""
    out = []
    for rank in range(world):
        geometry = Geometry(batch, rank, world, drop_last)
        epoch = UniformEpoch(size, geometry, seed=seed, epoch=2, shuffle=True, position=position)
        draws = []
        while (draw := epoch.draw()) is not None:
            draws.append(draw)
        assert len(draws) == epoch.steps
        assert epoch.draw() is None
        out.append(draws)
    return out


def expected_rest(size: int, position: int, seed: int = 5) -> list[int]:
    """The samples that are left after ``position``, by the order itself."""
    from headrace.sampling import epoch_order

    return epoch_order(size, seed, 2)[position:].tolist()


def can_be_exact(rest: int, batch: int, world: int) -> bool:
    """Whether every rank can have a sample of its own in each step."""
    return rest == 0 or rest % (batch * world) == 0 or (rest >= world and batch >= 2) or rest % world == 0


@given(SIZES, BATCHES, WORLDS, st.booleans(), st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_epoch_is_cut_fairly_and_completely(
    size: int, batch: int, world: int, drop_last: bool, share: float
) -> None:
    position = int(size * share)
    rest = expected_rest(size, position)
    ranks = ranks_of(size, batch, world, drop_last, position)
    steps = {len(draws) for draws in ranks}
    assert len(steps) == 1, "ranks with different numbers of batches would wait for each other for ever"
    assert steps == {len(rest) // (batch * world) if drop_last else -(-len(rest) // (batch * world))}
    for draws in ranks:
        assert all(1 <= len(draw.indices) <= batch for draw in draws)
        assert [draw.step for draw in draws] == list(range(len(draws)))
        assert [draw.last for draw in draws] == [False] * (len(draws) - 1) + [True] * bool(draws)
    seen = Counter(int(i) for draws in ranks for draw in draws for i in draw.indices)
    if drop_last:
        assert all(len(draw.indices) == batch for draws in ranks for draw in draws)
        assert seen == Counter(rest[: sum(len(draw.indices) for draws in ranks for draw in draws)])
    elif can_be_exact(len(rest), batch, world):
        assert seen == Counter(rest)
    else:
        assert set(seen) == set(rest), "padding repeats samples, and never loses one"
        assert sum(seen.values()) - len(rest) < world, "no more is repeated than fills one step"


@given(SIZES, BATCHES, WORLDS, st.booleans())
@settings(deadline=None)
def test_position_tells_what_all_ranks_have_after_each_step(
    size: int, batch: int, world: int, drop_last: bool
) -> None:
    ranks = ranks_of(size, batch, world, drop_last)
    order = expected_rest(size, 0)
    before = 0
    for step in zip(*ranks, strict=True):
        assert len({draw.position for draw in step}) == 1
        position = step[0].position
        assert before < position <= size
        assert {int(i) for draw in step for i in draw.indices} == set(order[before:position])
        before = position
    if not drop_last:
        assert before == size


@given(st.integers(1, 400), st.data())
@settings(max_examples=80, deadline=None)
def test_elastic_chain_of_resumes_delivers_exactly_the_remaining_samples(
    size: int, data: st.DataObject
) -> None:
    """Stop anywhere, go on with another number of ranks and batch size; again and again."""
    position, seen = 0, Counter[int]()
    while position < size:
        batch, world = data.draw(st.integers(2, 12)), data.draw(WORLDS)
        ranks = ranks_of(size, batch, world, False, position)
        steps = len(ranks[0])
        stop_after = data.draw(st.integers(1, steps))
        rest = size - position
        for draws in ranks:
            for draw in draws[:stop_after]:
                seen.update(draw.indices.tolist())
        repeated = world - rest if rest < world else 0
        assert sum(seen.values()) - ranks[0][stop_after - 1].position == repeated
        seen = Counter(set(seen))
        position = ranks[0][stop_after - 1].position
    assert seen == Counter(range(size))


@given(SIZES, BATCHES, WORLDS, st.integers(0, 60))
@settings(deadline=None)
def test_resuming_onto_the_same_geometry_changes_nothing(
    size: int, batch: int, world: int, step: int
) -> None:
    whole = ranks_of(size, batch, world, False)
    steps = len(whole[0])
    step = min(step, steps)
    position = whole[0][step - 1].position if step else 0
    resumed = ranks_of(size, batch, world, False, position)
    for before, after in zip(whole, resumed, strict=True):
        got = [draw.indices.tolist() for draw in after]
        assert got == [draw.indices.tolist() for draw in before[step:]]
        assert [draw.position for draw in after] == [draw.position for draw in before[step:]]


def test_what_a_rank_draws_does_not_depend_on_when_it_draws() -> None:
    geometry = Geometry(4, 1, 3)
    first = UniformEpoch(50, geometry, seed=1, epoch=0, shuffle=True)
    second = UniformEpoch(50, geometry, seed=1, epoch=0, shuffle=True)
    one = first.draw()
    both = [second.draw(), second.draw()]
    two = first.draw()
    assert one is not None and two is not None and both[0] is not None and both[1] is not None
    assert np.array_equal(one.indices, both[0].indices)
    assert np.array_equal(two.indices, both[1].indices)


def test_step_before_a_short_last_step_gives_up_samples() -> None:
    """13 samples, 3 ranks, batches of 2: 6 + 6 + 1 would leave two ranks without a last batch."""
    ranks = ranks_of(13, 2, 3, False)
    assert [[len(draw.indices) for draw in draws] for draws in ranks] == [[2, 2, 1], [2, 1, 1], [2, 1, 1]]
    assert [draw.position for draw in ranks[0]] == [6, 10, 13]


def test_fewer_samples_than_ranks_repeats_them() -> None:
    ranks = ranks_of(2, 4, 5, False)
    drawn = [draws[0].indices.tolist() for draws in ranks]
    assert [len(indices) for indices in drawn] == [1] * 5
    assert {index for indices in drawn for index in indices} == {0, 1}
    assert ranks[0][0].position == 2


def test_an_epoch_that_is_over_stays_over() -> None:
    epoch = UniformEpoch(10, Geometry(3), seed=0, epoch=0, shuffle=True, position=10)
    assert epoch.steps == 0
    assert epoch.draw() is None
    assert UniformEpoch(0, Geometry(3), seed=0, epoch=0, shuffle=True).draw() is None
