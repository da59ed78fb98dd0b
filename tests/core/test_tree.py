"""Nested samples come apart into leaves and go together again."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.tree import LEAF, Spec, count_leaves, flatten, unflatten


class Pair(NamedTuple):
    """A named tuple of two."""

    image: Any
    label: Any


Old = namedtuple("Old", ["a"])

LEAVES = st.one_of(
    st.none(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary(), st.booleans()
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=4),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        inner.map(Old),
    ),
    max_leaves=20,
)


def same(one: Any, two: Any) -> bool:
    """Equal, and of equal types at every level."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return bool(one == two)


@given(VALUES)
def test_round_trip(value: Any) -> None:
    leaves, spec = flatten(value)
    assert same(unflatten(spec, leaves), value)
    assert count_leaves(spec) == len(leaves)


@given(VALUES)
def test_spec_depends_on_the_shape_alone(value: Any) -> None:
    leaves, spec = flatten(value)
    replaced = unflatten(spec, list(range(len(leaves))))
    again, same_spec = flatten(replaced)
    assert again == list(range(len(leaves)))
    assert same_spec == spec
    hash(spec)


@given(VALUES, st.booleans())
def test_too_few_or_too_many_leaves_are_refused(value: Any, more: bool) -> None:
    """Never by StopIteration, which an iterator would take for its end."""
    leaves, spec = flatten(value)
    if not more and not leaves:
        return
    with pytest.raises(ValueError, match="leaves"):
        unflatten(spec, [*leaves, 1] if more else leaves[:-1])


def test_strings_and_bytes_are_leaves() -> None:
    assert flatten("abc") == (["abc"], LEAF)
    assert flatten([b"ab", "cd"])[0] == [b"ab", "cd"]


def test_other_mappings_become_dicts_in_their_order() -> None:
    leaves, spec = flatten(OrderedDict(z=1, a=2))
    assert leaves == [1, 2]
    assert unflatten(spec, leaves) == {"z": 1, "a": 2}


def test_specs_of_different_kinds_differ() -> None:
    specs = [
        flatten(value)[1] for value in ([1, 2], (1, 2), Pair(1, 2), {"a": 1, "b": 2}, {"b": 1, "a": 2}, 1)
    ]
    assert len(set(specs)) == len(specs)
    assert isinstance(specs[0], Spec)
