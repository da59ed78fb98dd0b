"""Bit sets: against Python's sets, and the uniformity of random choices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core import bits as bitset
from headrace.core.bits import Bits

SIZES = st.one_of(st.integers(0, 200), st.integers(0, 3000))


@st.composite
def some_ids(draw: st.DrawFn, size: int) -> list[int]:
    """Ids below ``size``, some of them more than once."""
    if not size:
        return []
    return draw(st.lists(st.integers(0, size - 1), max_size=60))


@st.composite
def sized(draw: st.DrawFn, lists: int) -> tuple[int, list[list[int]]]:
    """A size and lists of ids."""
    size = draw(SIZES)
    return size, [draw(some_ids(size)) for _ in range(lists)]


@given(sized(3))
def test_a_set_is_what_python_says_it_is(case: tuple[int, list[list[int]]]) -> None:
    size, (start, added, gone) = case
    bits, expected = Bits.of(size, start), set(start)
    assert bits.add(added) == len(set(added) - expected)
    expected |= set(added)
    assert bits.discard(gone) == len(set(gone) & expected)
    expected -= set(gone)
    assert bits.ids().tolist() == sorted(expected)
    assert bits.ids().dtype == np.int64
    assert bits.count() == len(expected)
    asked = start + added + gone
    assert bits.test(asked).tolist() == [one in expected for one in asked]


@given(sized(2))
def test_operators(case: tuple[int, list[list[int]]]) -> None:
    size, (one, two) = case
    a, b = Bits.of(size, one), Bits.of(size, two)
    assert (a & b).ids().tolist() == sorted(set(one) & set(two))
    assert (a | b).ids().tolist() == sorted(set(one) | set(two))
    assert (a - b).ids().tolist() == sorted(set(one) - set(two))
    assert (Bits.full(size) - a).count() == size - len(set(one))
    assert a == Bits.of(size, one) and (a == b) == (set(one) == set(two))
    assert a.ids().tolist() == sorted(set(one)), "operators leave their operands alone"


@given(sized(1), st.integers(0, 200))
def test_growing_keeps_the_samples_and_adds_none(case: tuple[int, list[list[int]]], more: int) -> None:
    size, (ids,) = case
    bits, full = Bits.of(size, ids), Bits.full(size)
    bits.grow(size + more)
    full.grow(size + more)
    assert bits == Bits.of(size + more, ids)
    assert full.ids().tolist() == list(range(size))
    if size:
        with pytest.raises(ValueError, match="cannot shrink"):
            bits.grow(size - 1)


@given(sized(1))
def test_bytes_there_and_back(case: tuple[int, list[list[int]]]) -> None:
    size, (ids,) = case
    bits = Bits.of(size, ids)
    again = Bits.frombytes(size, bits.tobytes())
    assert again == bits
    again.add(range(size))
    assert bits == Bits.of(size, ids), "the bytes are copied"


def test_bytes_that_are_no_set_are_refused() -> None:
    for size, data in [(65, bytes(8)), (64, bytes(16)), (10, b""), (0, bytes(8)), (-5, b"")]:
        with pytest.raises(ValueError, match="no set"):
            Bits.frombytes(size, data)
    with pytest.raises(ValueError, match="beyond"):
        Bits.frombytes(10, (1 << 10).to_bytes(8, "little"))
    assert Bits.frombytes(64, b"\xff" * 8).count() == 64
    assert Bits.frombytes(0, b"").count() == 0


def test_ids_out_of_range_are_refused_and_change_nothing() -> None:
    bits = Bits.of(70, [3])
    for ids in ([70], [-1], [5, 1 << 40], [-(1 << 62)]):
        for call in (bits.add, bits.discard, bits.test):
            with pytest.raises(IndexError):
                call(ids)
    assert bits.ids().tolist() == [3]


def test_sets_over_different_universes_do_not_mix() -> None:
    with pytest.raises(ValueError, match="65"):
        Bits.empty(64) & Bits.empty(65)
    assert Bits.empty(64) != Bits.empty(65)


def test_a_copy_is_a_set_of_its_own() -> None:
    bits = Bits.of(100, [1, 99])
    other = bits.copy()
    other.discard([1])
    assert bits.ids().tolist() == [1, 99]
    assert repr(other) == "<Bits 1 of 100>"


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.001, 0.02, 0.3, 0.97, 1.0]), st.integers(0, 9000))
@settings(deadline=None)
def test_rank_and_select(seed: int, density: float, size: int) -> None:
    rng = np.random.default_rng(seed)
    ids = np.flatnonzero(rng.random(size) < density)
    words = Bits.of(size, ids).words
    assert np.array_equal(bitset.members(words), ids)
    assert bitset.count(words) == len(ids)
    ranks = rng.integers(0, max(len(ids), 1), 50 if len(ids) else 0)
    assert np.array_equal(bitset.select(words, ranks), ids[ranks])
    for wanted in (0, 1, len(ids) - 1, len(ids), len(ids) + 1):
        assert bitset.at_least(words, wanted) == (len(ids) >= wanted)
    for wrong in (len(ids), -1):
        with pytest.raises(IndexError):
            bitset.select(words, np.array([wrong]))


@given(
    st.integers(0, 2**70),
    st.sampled_from([0.0, 0.0005, 0.01, 0.3, 1.0]),
    st.integers(0, 20_000),
    st.integers(0, 300),
)
@settings(deadline=None)
def test_a_choice_is_of_different_members_and_pure(key: int, density: float, size: int, wanted: int) -> None:
    ids = np.flatnonzero(np.random.default_rng(size).random(size) < density)
    words = Bits.of(size, ids).words
    chosen = bitset.choose(words, wanted, key)
    assert len(chosen) == min(wanted, len(ids))
    assert len(set(chosen.tolist())) == len(chosen)
    assert set(chosen.tolist()) <= set(ids.tolist())
    assert np.array_equal(bitset.choose(words, wanted, key), chosen)


# Sets that take each of the ways through ``choose``: tries, ranks, and everything shuffled; and one that looks dense
# where it is probed and is not, so that tries run out.
CHOICES = {
    "dense": (np.arange(0, 4000, 2), 10, 2000),
    "sparse": (np.arange(0, 400_000, 9_777), 3, 2000),
    "small": (np.array([3, 64, 65, 700, 1999]), 2, 1000),
    "uneven": (
        np.concatenate([np.arange(64 * word, 64 * word + 10) for word in range(0, 2000, 16)]),
        8,
        2000,
    ),
}


@pytest.mark.parametrize("kind", CHOICES)
def test_choices_are_uniform_and_so_is_their_order(kind: str) -> None:
    ids, wanted, draws = CHOICES[kind]
    words = Bits.of(int(ids.max()) + 1, ids).words
    place = {int(one): at for at, one in enumerate(ids)}
    bins = min(len(ids), 20)
    first, last = np.zeros(bins), np.zeros(bins)
    # Keys that follow each other, because a caller may count.
    for key in range(draws):
        chosen = bitset.choose(words, wanted, key)
        first[place[int(chosen[0])] * bins // len(ids)] += 1
        last[place[int(chosen[-1])] * bins // len(ids)] += 1
    expected = draws * np.bincount(np.arange(len(ids)) * bins // len(ids), minlength=bins) / len(ids)
    for counts in (first, last):
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < bins - 1 + 7 * (2 * (bins - 1)) ** 0.5


def test_different_keys_choose_independently() -> None:
    words = Bits.full(100_000).words
    chosen = [set(bitset.choose(words, 1000, key).tolist()) for key in range(30)]
    shared = [len(chosen[a] & chosen[b]) for a in range(30) for b in range(a)]
    # Each pair shares 10 on average, with a standard deviation of about 3.
    assert abs(np.mean(shared) - 10) < 7 * 3 / len(shared) ** 0.5
    assert max(shared) < 40


@given(st.integers(0, 200), st.integers(-(2**70), 2**70))
def test_shuffled_is_a_permutation(length: int, key: int) -> None:
    ids = np.arange(1000, 1000 + length)
    assert sorted(bitset.shuffled(ids, key).tolist()) == ids.tolist()
