"""Sizes and numbers of batches, over the whole grid and then over drawn datasets."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parity.datasets import Mapped, Numbers, Pair
from tests.parity.equality import assert_matches_reference, assert_same, reference

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("size", [1, 2, 7, 12])
def test_grid_in_this_process(loader_class, size):
    for batch_size, drop_last in itertools.product([1, 2, 3, 5, 12, 100], [False, True]):
        options = {"batch_size": batch_size, "drop_last": drop_last}
        assert_matches_reference(loader_class, Numbers(size), **options)
    assert_matches_reference(loader_class, Numbers(size), batch_size=None)
    assert_matches_reference(loader_class, Numbers(size))


@pytest.mark.parametrize(
    ("size", "batch_size", "drop_last", "num_workers"),
    [
        (1, 1, False, 2),
        (7, 1, False, 2),
        (7, 2, False, 1),
        (7, 3, True, 2),
        (12, 5, False, 2),
        (12, 5, True, 1),
        (12, 100, False, 2),
        (12, 100, True, 2),
        (31, 4, False, 2),
        (7, None, False, 2),
        (1, None, False, 1),
    ],
)
def test_grid_in_workers(loader_class, size, batch_size, drop_last, num_workers):
    options = {"batch_size": batch_size, "drop_last": drop_last, "num_workers": num_workers}
    assert_matches_reference(loader_class, Numbers(size), **options)


def test_default_is_batches_of_one(loader_class):
    assert_same(list(loader_class(Numbers(2))), [torch.tensor([0]), torch.tensor([1])])


def test_a_number_from_numpy_is_no_batch_size(loader_class):
    for batch_size in (np.int64(2), 2.0, "2", True):
        with pytest.raises(ValueError, match="batch_size should be a positive integer value"):
            loader_class(Numbers(4), batch_size=batch_size)


LEAVES = ["int", "float", "bool", "str", "bytes", "tensor", "array", "scalar", "empty"]
STRUCTURES = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.tuples(st.just("list"), st.lists(inner, max_size=3)),
        st.tuples(st.just("tuple"), st.lists(inner, max_size=3)),
        st.tuples(st.just("dict"), st.dictionaries(st.sampled_from("abcde"), inner, max_size=3)),
        st.tuples(st.just("pair"), st.lists(inner, min_size=2, max_size=2)),
    ),
    max_leaves=6,
)


def build(structure, index):
    """Make the sample of ``index`` with the given structure."""
    match structure:
        case "int":
            return index - 3
        case "float":
            return index / 7
        case "bool":
            return index % 3 == 0
        case "str":
            return f"{index}é" * (index % 3)
        case "bytes":
            return bytes([index % 256]) * (index % 4)
        case "tensor":
            return torch.arange(6, dtype=torch.float32).reshape(3, 2).t() * index
        case "array":
            return np.full((2, 2), index, np.int16)
        case "scalar":
            return np.float32(index)
        case "empty":
            return torch.zeros(0, 2, dtype=torch.uint8)
        case "list", parts:
            return [build(part, index) for part in parts]
        case "tuple", parts:
            return tuple(build(part, index) for part in parts)
        case "dict", parts:
            return {key: build(part, index) for key, part in parts.items()}
        case "pair", (left, right):
            return Pair(build(left, index), build(right, index))
    raise AssertionError(structure)


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(0, 40),
    batch_size=st.one_of(st.none(), st.integers(1, 50)),
    drop_last=st.booleans(),
    num_workers=st.sampled_from([0, 2]),
    structure=STRUCTURES,
)
def test_drawn_datasets_in_order(loader_class, size, batch_size, drop_last, num_workers, structure):
    dataset = Mapped(lambda index: build(structure, index), size)
    options = {"batch_size": batch_size, "drop_last": drop_last and batch_size is not None}
    assert_matches_reference(loader_class, dataset, num_workers=num_workers, **options)


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(1, 60),
    batch_size=st.one_of(st.none(), st.integers(1, 70)),
    drop_last=st.booleans(),
    num_workers=st.sampled_from([0, 2]),
    seed=st.integers(0, 2**63 - 1),
)
def test_drawn_datasets_shuffled(loader_class, size, batch_size, drop_last, num_workers, seed):
    options = {"batch_size": batch_size, "drop_last": drop_last and batch_size is not None}
    loader = loader_class(
        Numbers(size),
        shuffle=True,
        num_workers=num_workers,
        generator=torch.Generator().manual_seed(seed),
        **options,
    )
    batches = [np.atleast_1d(batch).tolist() for batch in loader]
    in_order = [np.atleast_1d(batch).tolist() for batch in reference(Numbers(size), **options)]
    assert len(loader) == len(batches)
    assert [len(batch) for batch in batches] == [len(batch) for batch in in_order]
    drawn = sorted(index for batch in batches for index in batch)
    if options["drop_last"]:
        assert len(set(drawn)) == len(drawn)
        assert set(drawn) <= set(range(size))
    else:
        assert drawn == list(range(size))
