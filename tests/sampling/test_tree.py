"""The sampling tree against what its definition says, by Python's sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core import bits as bitset
from headrace.core.bits import Bits
from headrace.sampling import Tree

SIZE = 90
SETS = st.sets(st.integers(0, SIZE - 1), max_size=20) | st.sets(st.integers(0, SIZE - 1), min_size=70)


def check(tree: Tree, sets: dict[int, set[int]]) -> None:
    """Everything that the tree says, computed anew."""
    order = tree.jobs
    assert sorted(order) == sorted(sets)
    assert list(tree.sizes) == sorted(len(one) for one in sets.values())
    assert [len(sets[job]) for job in order] == list(tree.sizes)
    before: set[int] = set()
    vertices, leaves = [], []
    for place, job in enumerate(order):
        suffix = set(sets[job]).intersection(*(sets[other] for other in order[place:]))
        vertices.append(suffix - before)
        leaves.append(sets[job] - suffix)
        assert set(bitset.members(tree.vertex(place)).tolist()) == vertices[-1]
        assert set(bitset.members(tree.leaf(place)).tolist()) == leaves[-1]
        before = suffix
    assert tree.vertex_sizes() == [len(one) for one in vertices]
    assert tree.leaf_sizes() == [len(one) for one in leaves]


@given(st.lists(st.tuples(st.integers(0, 12), SETS), max_size=25), st.lists(st.booleans(), min_size=25))
@settings(deadline=None, max_examples=60)
def test_tree_is_its_definition_through_insertions_and_removals(
    steps: list[tuple[int, set[int]]], looks: list[bool]
) -> None:
    tree, sets = Tree(), dict[int, set[int]]()
    for (job, members), look in zip(steps, looks, strict=False):
        if job in sets:
            tree.remove(job)
            del sets[job]
        else:
            tree.insert(job, Bits.of(SIZE, sorted(members)))
            sets[job] = members
        if look:  # what was computed before must not be what is said after
            check(tree, sets)
    check(tree, sets)


def test_more_than_64_jobs_equal_empty_and_disjoint_sets() -> None:
    tree, sets = Tree(), dict[int, set[int]]()
    for job in range(150):
        kind = job % 4
        sets[job] = [set(range(50)), set(), {job % SIZE}, set(range(job % 40, SIZE))][kind]
        tree.insert(job, Bits.of(SIZE, sorted(sets[job])))
    check(tree, sets)
    for job in range(0, 150, 4):
        tree.remove(job)
        del sets[job]
    check(tree, sets)


def test_what_cannot_be_is_refused() -> None:
    tree = Tree()
    tree.insert(1, Bits.full(64))
    with pytest.raises(ValueError, match="already"):
        tree.insert(1, Bits.full(64))
    with pytest.raises(ValueError, match="one universe"):
        tree.insert(2, Bits.full(65))
    with pytest.raises(ValueError):
        tree.remove(2)
    assert tree.jobs == (1,)
    assert np.array_equal(tree.vertex(0), Bits.full(64).words)
