"""The split of a cache budget: never more than the budget, in the proportions asked for."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import OptionError
from headrace.core.forms import CACHEABLE, Form
from headrace.planning import split_budget

SHARES = st.tuples(*(st.floats(0, allow_nan=False, allow_infinity=False),) * 3).filter(any)


@given(st.integers(0, 2**70), SHARES)
def test_parts_are_no_more_than_the_whole_and_nearly_all_of_it(
    budget: int, shares: tuple[float, ...]
) -> None:
    parts = split_budget(budget, shares)
    assert list(parts) == list(CACHEABLE)
    assert all(part >= 0 for part in parts.values())
    assert budget - 2 <= sum(parts.values()) <= budget


@given(st.integers(0, 2**50), st.tuples(*(st.integers(0, 1000),) * 3).filter(any))
def test_parts_follow_the_shares(budget: int, shares: tuple[int, int, int]) -> None:
    for share, part in zip(shares, split_budget(budget, shares).values(), strict=True):
        assert part == budget * share // sum(shares)


@given(st.integers(0, 2**60))
def test_the_rule_gives_all_to_the_decoded_form(budget: int) -> None:
    expected = {Form.ENCODED: 0, Form.DECODED: budget, Form.AUGMENTED: 0}
    assert split_budget(budget, None) == split_budget(budget, "auto") == expected


@pytest.mark.parametrize(
    "split",
    [
        "",
        "abc",
        "0,1",
        (),
        (1,),
        (1, 2),
        (1, 2, 3, 4),
        (0, 0, 0),
        (-1, 2, 0),
        (math.nan, 1, 0),
        (math.inf, 1, 0),
    ],
)
def test_what_is_not_a_split_is_refused(split: Any) -> None:
    with pytest.raises(OptionError, match="split="):
        split_budget(1000, split)
