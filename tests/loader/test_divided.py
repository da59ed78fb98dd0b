"""torch's DistributedSampler: other ranks, or other batches, go on with what is left of an epoch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler

import headrace as hr
from tests.loader.helpers import recipe, targets


class Numbers:
    """A torch dataset: the samples are their numbers."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return index, index


def loaders(
    data: Any, ranks: int, batch_size: int | None, drop_last: bool, shuffle: bool = True
) -> list[hr.DataLoader[Any]]:
    """One for each rank."""
    samplers = [
        DistributedSampler(data, ranks, rank, shuffle=shuffle, seed=3, drop_last=drop_last)
        for rank in range(ranks)
    ]
    cut = {"batch_size": batch_size, "drop_last": drop_last and batch_size is not None}
    return [hr.DataLoader(data, sampler=sampler, num_workers=0, seed=1, **cut) for sampler in samplers]


def numbers(batch: Any) -> list[int]:
    found = batch[1]
    return [int(found)] if isinstance(found, int) or found.ndim == 0 else found.tolist()


parts = st.lists(
    st.tuples(st.integers(1, 5), st.one_of(st.none(), st.integers(1, 4)), st.integers(0, 5)),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60)
@given(st.integers(1, 70), parts, st.booleans(), st.booleans(), st.booleans())
@example(
    40, [(1, 4, 1), (4, 4, 0), (2, 4, 1)], False, True, False
)  # less than a step of the others was given out
@example(41, [(4, 3, 2), (2, 3, 1), (3, 3, 1)], False, True, True)
def test_every_sample_of_the_epoch_comes_once(
    size: int, parts: list[tuple[int, int | None, int]], drop_last: bool, shuffle: bool, described: bool
) -> None:
    """But for those that are repeated, as torch does it, so that all ranks have equally many batches."""
    data = recipe(size, (2,)) if described else Numbers(size)
    state, got, left = None, Counter[int](), size
    for ranks, batch_size, steps in [*parts, (*parts[-1][:2], None)]:
        if described and batch_size is None:
            batch_size = 1
        there = loaders(data, ranks, batch_size, drop_last, shuffle)
        states, shares = [], []
        for loader in there:
            loader.sampler.set_epoch(2)
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            batches = iter(loader)
            shares.append([numbers(batch) for batch in islice(batches, steps)])
            states.append(loader.state_dict())
        assert len({len(share) for share in shares}) == 1, "the same number of batches for each rank"
        assert all(one == states[0] for one in states[1:]), "whose state it is makes no difference"
        state = states[0]
        now = Counter(sample for share in shares for batch in share for sample in batch)
        got += now
        left = max(0, left - now.total())
        assert left == 0 or len(got) == got.total(), "only the end of an epoch repeats"
        if steps is None or len(shares[0]) < steps:
            break  # (the state is of the next epoch)
    if not drop_last:
        assert set(got) == set(range(size))
        assert got.total() - size < max(ranks for ranks, *_ in parts)
    else:
        assert not got or set(got.values()) == {1}


def test_a_state_of_the_same_ranks_is_as_before() -> None:
    """Also where it was divided anew before: the order goes on with it."""
    state = None
    for loader in loaders(Numbers(50), 4, 3, False):
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
    assert state is not None
    (first, _) = loaders(Numbers(50), 2, 3, False)
    first.load_state_dict(state)
    whole = targets(first)
    (again, _) = loaders(Numbers(50), 2, 3, False)
    again.load_state_dict(state)
    batches = iter(again)
    begun = [next(batches)[1].tolist(), next(batches)[1].tolist()]
    (third, _) = loaders(Numbers(50), 2, 3, False)
    third.load_state_dict(again.state_dict())
    assert begun + targets(third) == whole
    assert len(whole) == len(first) - 2


class Subclass(DistributedSampler[Any]):
    """Divides in its own way."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, 40, self.num_replicas))


def _wrapped(ranks: int) -> Any:
    """Batches that only their sampler knows."""

    class Batches(BatchSampler):
        pass

    return {"batch_sampler": Batches(DistributedSampler(range(40), ranks, 0), 4, False)}


@pytest.mark.parametrize(
    "order", [_wrapped, lambda ranks: {"sampler": Subclass(range(40), ranks, 0), "batch_size": 4}]
)
def test_what_cannot_be_divided_anew_is_refused(order: Any) -> None:
    loader = hr.DataLoader(Numbers(40), **order(2))
    next(iter(loader))
    state = loader.state_dict()
    hr.DataLoader(Numbers(40), **order(2)).load_state_dict(state)
    with pytest.raises(hr.StateError, match="among 2 ranks, and this one has 4"):
        hr.DataLoader(Numbers(40), **order(4)).load_state_dict(state)
