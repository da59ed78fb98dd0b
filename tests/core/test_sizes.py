"""Sizes as people write them: obeyed exactly, or refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import OptionError
from headrace.core.sizes import parse_size, show_size

UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}{tail}": base**power for power, letter in enumerate("kmgtp", 1) for tail, base in
       (("", 1024), ("ib", 1024), ("b", 1000))},
}  # fmt: skip


@given(st.integers(0, 2**80))
def test_a_number_of_bytes_is_that_number(size: int) -> None:
    assert parse_size(size, total=5) == size
    assert parse_size(str(size), total=5) == size


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)), st.booleans(), st.sampled_from(["", " "]))
def test_units(number: int, unit: str, upper: bool, gap: str) -> None:
    text = f"{number}{gap}{unit.upper() if upper else unit}"
    assert parse_size(text, total=0) == number * UNITS[unit]


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, 0),
        ("8GiB", 8 * 2**30),
        ("1.5 KiB", 1536),
        (".5k", 512),
        ("2kB", 2000),
        (0.25, 250),
        ("0.25", 250),
        ("25%", 250),
        ("12.5 %", 125),
        ("100%", 1000),
        (0.0, 0),
        (8e9, 8_000_000_000),
        (np.int64(77), 77),
        (np.float64(0.5), 500),
        (1.0, 1000),
        ("1.0", 1000),
        (1, 1),
        ("1", 1),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_examples(value: object, size: int) -> None:
    assert parse_size(value, total=1000) == size  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            " ",
            "GiB",
            "8 GiBs",
            "eight",
            "8GiB 2",
            "1e9",
            "-1",
            "-5%",
            "8,5G",
            "0x10",
            "5.",
            "٣",
            "8\nGiB x",
        ),
        *(True, False, math.nan, math.inf, -math.inf, -1, -0.5, -1e-9, b"8", [8], (1, 2), object()),
    ],
)
def test_what_is_not_a_size_is_refused_by_name(value: object) -> None:
    with pytest.raises(OptionError, match="budget="):
        parse_size(value, total=1000, option="budget")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [1.5, "1.5", 8.25, 1e6 + 0.5, np.float64(2.5)])
def test_parts_of_a_byte_are_refused(value: object) -> None:
    with pytest.raises(OptionError, match=rf"^cache=.* neither a number of bytes nor a share.*'{value}GiB'"):
        parse_size(value, total=1000)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [8, 4095, "8", "1 KiB", 8.0])
def test_what_can_hold_nothing_is_refused(value: object) -> None:
    with pytest.raises(OptionError, match=r"bytes, and no sample has room in less than 4096; write.*'8GiB'"):
        parse_size(value, total=1000, least=4096)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, 0, "0", 0.0, 4096, "4KiB", 0.25, "25%"])
def test_none_at_all_and_shares_are_not(value: object) -> None:
    assert parse_size(value, total=1 << 20, least=4096) in (0, 4096, 1 << 18)  # type: ignore[arg-type]


@given(st.floats(0, 1, exclude_min=True), st.integers(0, 2**50))
def test_a_share_never_exceeds_the_whole(share: float, total: int) -> None:
    assert 0 <= parse_size(share, total=total) <= total


@given(st.floats(0, 2**60))
def test_shown_sizes_parse_back_to_about_the_same(size: float) -> None:
    back = parse_size(show_size(size), total=0)
    assert abs(back - size) <= 0.05 * 1024 ** max(0, math.floor(math.log(max(size, 1), 1024))) + 1


def test_shown_sizes() -> None:
    assert [show_size(s) for s in (0, 1023, 1536, 5 * 2**30, 3 * 2**40)] == [
        *("0 B", "1023 B", "1.5 KiB", "5.0 GiB", "3.0 TiB")
    ]
