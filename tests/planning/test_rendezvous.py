"""Placement by rendezvous hashing: what has to hold whatever nodes there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.rendezvous import key_of, owners

SAMPLES = np.arange(4000)
names = st.lists(st.text("abcdef0123456789", min_size=4, max_size=12), min_size=1, max_size=12, unique=True)


def placed(nodes: list[str], weights: list[float] | None = None, dataset: str = "data") -> list[str]:
    """The name of each sample's node."""
    found = owners(SAMPLES, key_of(dataset), [key_of(one) for one in nodes], weights or [1.0] * len(nodes))
    return [nodes[place] for place in found.tolist()]


@given(names)
def test_a_node_that_goes_moves_its_own_samples_only(nodes: list[str]) -> None:
    before = placed(nodes)
    for gone in nodes[:3] if len(nodes) > 1 else []:
        after = placed([one for one in nodes if one != gone])
        assert all(was in (now, gone) for was, now in zip(before, after, strict=True))
        assert gone not in after


@given(names, st.data())
def test_the_order_of_nodes_does_not_matter(nodes: list[str], data: st.DataObject) -> None:
    weights = [float(data.draw(st.integers(1, 8))) for _ in nodes]
    order = data.draw(st.permutations(range(len(nodes))))
    assert placed(nodes, weights) == placed([nodes[at] for at in order], [weights[at] for at in order])


def test_shares_follow_weights() -> None:
    nodes, weights = ["a", "b", "c", "d"], [1.0, 1.0, 2.0, 4.0]
    found = placed(nodes, weights)
    for node, weight in zip(nodes, weights, strict=True):
        assert found.count(node) / len(SAMPLES) == pytest.approx(weight / sum(weights), rel=0.12)


def test_a_node_that_gives_more_takes_from_all_and_gives_to_none() -> None:
    before, after = placed(["a", "b", "c"], [1, 1, 1]), placed(["a", "b", "c"], [1, 1, 2])
    moved = [(was, now) for was, now in zip(before, after, strict=True) if was != now]
    assert moved and all(now == "c" for _, now in moved)


def test_nodes_without_memory_have_nothing_unless_all_are_so() -> None:
    assert set(placed(["a", "b"], [0.0, 1.0])) == {"b"}
    assert set(placed(["a", "b"], [0.0, 0.0])) == {"a", "b"}
    with pytest.raises(ValueError):
        owners(SAMPLES, 1, [], [])


def test_datasets_are_placed_apart() -> None:
    assert placed(["a", "b", "c"], dataset="one") != placed(["a", "b", "c"], dataset="two")


def test_placement_is_the_same_everywhere() -> None:
    # (nodes of different versions and machines have to agree)
    found = owners(np.arange(12), key_of("data"), [key_of(one) for one in ("a", "b", "c")], [1.0, 2.0, 3.0])
    assert found.tolist() == [2, 2, 2, 1, 0, 0, 1, 2, 1, 1, 2, 0]
