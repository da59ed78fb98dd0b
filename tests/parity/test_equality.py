"""The comparison that every parity test rests on must see each kind of difference."""

import collections
from typing import Any

import numpy as np
import pytest
import torch

from tests.parity.datasets import Pair, Sentence, Tagged, TaggedList
from tests.parity.equality import difference
from tests.parity.samples import SAMPLES

pytestmark = pytest.mark.parity


def _tagged(kind: Any, tag: str) -> Any:
    made = kind()
    made.tag = tag
    return made


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.zeros(1, 2)),
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.tensor([0.0, 1.0])),
        (torch.tensor([float("nan")]), torch.tensor([0.0])),
        (torch.zeros(2), torch.zeros(2, requires_grad=True)),
        (torch.eye(2), torch.eye(2).to_sparse()),
        (torch.zeros(2), np.zeros(2, np.float32)),
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros(2), np.ones(2)),
        ([1, 2], (1, 2)),
        ([1, 2], [1, 3]),
        ([1, 2], [1, 2, 3]),
        ([1], [True]),
        ([1], [1.0]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, collections.OrderedDict(a=1)),
        ({"a": [1]}, {"a": [2]}),
        (Pair(1, 2), (1, 2)),
        (Pair(1, [2]), Pair(1, [3])),
        (_tagged(Tagged, "x"), _tagged(Tagged, "y")),
        (_tagged(TaggedList, "x"), _tagged(TaggedList, "y")),
        ("a", b"a"),
        (0.0, float("nan")),
        (None, 0),
    ],
)
def test_sees_a_difference(left: Any, right: Any) -> None:
    assert difference(left, right) is not None
    assert difference([{"deep": left}], [{"deep": right}]) is not None


def test_sees_a_difference_inside_an_object() -> None:
    left, right = _tagged(_Plain, "x"), _tagged(_Plain, "y")
    assert difference(left, right) is not None
    assert difference(left, _tagged(_Plain, "x")) is None


class _Plain:
    pass


@pytest.mark.parametrize("kind", SAMPLES)
def test_sees_none_between_equal_samples(kind: str) -> None:
    assert difference(SAMPLES[kind](3), SAMPLES[kind](3)) is None


def test_names_the_place() -> None:
    found = difference({"a": [1, Sentence([], torch.zeros(0))]}, {"a": [1, None]})
    assert found == "batch['a'][1]: Sentence is not NoneType"
