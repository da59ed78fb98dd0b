"""Decoded samples are moved between machines where that costs less than decoding them, and not where the network is
short."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.planning.moving import Moving

BYTE = 3e-9
SIZES = st.integers(1 << 10, 1 << 25)
SECONDS = st.floats(1e-5, 0.2)


def known(decoding: float, encoded: int, decoded: int, *, augment: float = 1e-3, rows: int = 64) -> Moving:
    """One that has decoded a few samples."""
    moving = Moving()
    for _ in range(rows // 8):
        moving.fetched(8, 8 * encoded)
        moving.decoded(8, 8 * decoding, 8 * (decoding + augment))
    moving.sized(8, 8 * decoded)
    return moving


@given(SECONDS, SIZES, SIZES)
def test_what_costs_less_to_move_than_to_decode_is_moved(decoding: float, encoded: int, decoded: int) -> None:
    moving = known(decoding, encoded, decoded)
    spared, costs = decoding + BYTE * encoded, BYTE * decoded
    if spared > 1.6 * costs:
        assert moving.pays(0.0)
    if spared < 1.4 * costs:
        assert not moving.pays(0.0)


@given(SECONDS, SIZES, SIZES)
def test_nothing_is_moved_before_anything_is_known(decoding: float, encoded: int, decoded: int) -> None:
    moving = Moving()
    assert moving.needs_size() and not moving.pays(0.0)
    moving.sized(8, 8 * decoded)
    assert not moving.needs_size() and not moving.pays(0.0)
    moving.fetched(8, 8 * encoded)
    moving.decoded(8, 8 * decoding, 8 * decoding)
    assert not moving.pays(0.0)  # (the first samples say more about starting up)


@given(SECONDS, SIZES, SIZES, st.floats(1e-4, 1.0), st.integers(1, 64))
def test_rows_that_wait_longer_than_they_would_take_are_decoded_here(
    decoding: float, encoded: int, decoded: int, row: float, rows: int
) -> None:
    moving = known(decoding, encoded, decoded)
    begun = moving.pays(0.0)
    moved, now = 0, 0.0
    while moving.pays(now) and moved < 2000:
        now += rows * row
        moved += rows
        moving.found(rows, rows * row, now)
    if not begun:
        assert not moved
    elif row <= decoding + 1e-3 or decoded <= encoded:
        assert moved >= 2000  # (what is smaller is moved in any case: encoded, it would take longer)
    elif row > 1.01 * (decoding + 1e-3):
        assert moved <= 256 + rows


def test_it_is_tried_again_after_longer_and_longer_pauses() -> None:
    moving, now, ended = known(0.01, 1 << 16, 1 << 18), 0.0, []
    while now < 7200.0:
        if moving.pays(now):
            now += 0.32
            moving.found(16, 16 * 0.02, now)
            if not moving.pays(now):
                ended.append(now)
        now += 0.1
    pauses = [after - before for before, after in itertools.pairwise(ended)]
    assert pauses[0] == pytest.approx(30, rel=0.3)
    assert all(after > 1.5 * before for before, after in itertools.pairwise(pauses[:-1]))
    assert max(pauses) < 1900


def test_what_comes_of_requests_from_before_a_pause_does_not_prolong_it() -> None:
    moving = known(0.01, 1 << 16, 1 << 18)
    moving.found(256, 256 * 0.02, 1.0)
    assert not moving.pays(1.0)
    moving.found(4096, 4096 * 0.02, 30.9)
    assert moving.pays(31.1)


def test_a_pause_of_long_ago_is_forgotten() -> None:
    moving = known(0.01, 1 << 16, 1 << 18)
    moving.found(256, 256 * 0.02, 0.0)
    assert not moving.pays(29.0) and moving.pays(31.0)
    moving.found(10000, 10000 * 0.001, 600.0)
    moving.found(100000, 100000 * 0.02, 601.0)
    assert not moving.pays(630.0) and moving.pays(632.0)


def test_it_goes_on_as_long_as_it_costs_no_more_than_it_saves() -> None:
    moving = known(1.6 * BYTE * (1 << 20), 1, 1 << 20)
    assert moving.pays(0.0)
    moving.decoded(10_000, 10_000 * 1.2 * BYTE * (1 << 20), 1.0)
    assert moving.pays(0.0)
    moving.decoded(10_000, 10_000 * 0.9 * BYTE * (1 << 20), 1.0)
    assert not moving.pays(0.0)
    moving.decoded(10_000, 10_000 * 1.2 * BYTE * (1 << 20), 1.0)
    assert not moving.pays(0.0)
