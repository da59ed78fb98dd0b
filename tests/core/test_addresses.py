"""Addresses: what goes in comes out, and what is none is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.addresses import NOWHERE, SPAN, Tier, pack, tiers_of, unpack

OFFSETS = st.integers(0, SPAN - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.sampled_from(Tier), st.lists(OFFSETS, max_size=20))
def test_what_is_packed_is_unpacked(tier: Tier, offsets: list[int]) -> None:
    addresses = [pack(tier, offset) for offset in offsets]
    assert [unpack(address) for address in addresses] == [(tier, offset) for offset in offsets]
    assert tiers_of(np.array(addresses, np.int64)).tolist() == [tier] * len(offsets)


@given(OFFSETS)
def test_an_address_in_the_arena_is_the_offset_itself(offset: int) -> None:
    assert pack(Tier.ARENA, offset) == offset


@given(st.lists(st.tuples(st.sampled_from(Tier), OFFSETS), min_size=2, max_size=20, unique=True))
def test_different_places_have_different_addresses_that_keep_their_order(
    places: list[tuple[Tier, int]],
) -> None:
    addresses = [pack(*place) for place in sorted(places)]
    assert all(0 <= a < b < 1 << 63 for a, b in itertools.pairwise(addresses))


@given(INT64)
def test_a_number_is_an_address_or_is_refused(number: int) -> None:
    if 0 <= number < len(Tier) * SPAN:
        assert pack(*unpack(number)) == number
        return
    with pytest.raises(ValueError, match="address"):
        unpack(number)


@pytest.mark.parametrize(
    ("tier", "offset"), [(Tier.DISK, -1), (Tier.DISK, SPAN), (-1, 0), (len(Tier), 0), (1 << 60, 0)]
)
def test_what_is_no_place_has_no_address(tier: int, offset: int) -> None:
    with pytest.raises(ValueError, match="no address"):
        pack(tier, offset)


def test_nowhere_is_no_address() -> None:
    with pytest.raises(ValueError, match="no address"):
        unpack(NOWHERE)
