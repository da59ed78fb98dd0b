"""Bit sets in C and in numpy: one answer, one verdict."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core import bits as bitset
from headrace.core import native, words
from headrace.core import random as rnd
from headrace.core.bits import Bits

pytestmark = pytest.mark.skipif(
    os.environ.get("HEADRACE_NATIVE") == "0"
    or importlib.util.find_spec("headrace.recipes.image._kernels") is None,
    reason="what is in C is switched off, or there was no compiler to build it",
)

KEYS = st.integers(0, (1 << 64) - 1)


@st.composite
def sets(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.random.Generator]:
    """The words of a set of any size and density, and a generator for what is asked of it."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    size = draw(st.one_of(st.integers(1, 300), st.integers(1, 20_000)))
    density = draw(st.sampled_from([0.0, 0.002, 0.05, 0.3, 0.9, 1.0]))
    return Bits.of(size, np.flatnonzero(rng.random(size) < density)).words, rng


def test_whoever_has_the_kernels_has_these() -> None:
    assert native.calls is not None


@given(st.integers(1, 500), st.lists(st.integers(0, 1 << 32), max_size=8), st.booleans())
def test_readers_are_counted_the_same(size: int, seeds: list[int], strided: bool) -> None:
    """Any number of readers come, some samples twice; then they go one after the other."""
    one, other = ((np.zeros(64 * bitset.words_for(size), np.int32), Bits.empty(size).words) for _ in range(2))
    came = []
    for seed in seeds:
        ids = np.random.default_rng(seed).integers(0, size, seed % 40)
        came.append(np.stack([ids, ids], axis=1)[:, 0] if strided else ids)
    for ours, theirs, turns in (
        (bitset.hold, words.hold, came),
        (bitset.let_go, words.let_go, came[::-1]),
    ):
        for ids in turns:
            ours(*one, ids)
            theirs(*other, ids)
            assert one[0].tolist() == other[0].tolist() and one[1].tolist() == other[1].tolist()
            assert bitset.members(one[1]).tolist() == np.flatnonzero(one[0]).tolist()
    assert not one[0].any() and not one[1].any()
    for let_go in (bitset.let_go, words.let_go):
        with pytest.raises(ValueError, match="no reader"):
            let_go(np.zeros(64, np.int32), np.zeros(1, np.uint64), np.array([3]))
    with pytest.raises(ValueError, match="fewer counts"):
        bitset.hold(np.zeros(63, np.int32), np.zeros(1, np.uint64), np.array([3]))


@given(sets(), st.integers(0, 300), st.booleans())
def test_members_and_changes_are_the_same(case: Any, count: int, strided: bool) -> None:
    there, rng = case
    ids = rng.integers(0, 64 * len(there), count)
    if strided:
        ids = np.stack([ids, ids], axis=1)[:, 0]
    ids.flags.writeable = False
    assert bitset.test(there, ids).tolist() == words.test(there, ids).tolist()
    assert bitset.test(there, ids).dtype == np.bool_
    assert bitset.count(there) == words.count(there)
    assert bitset.members(there).tolist() == words.members(there).tolist()
    for ours, theirs in ((bitset.put, words.put), (bitset.drop, words.drop)):
        one, other = there.copy(), there.copy()
        ours(one, ids)
        theirs(other, ids)
        assert one.tolist() == other.tolist()
    others = [rng.permutation(there) for _ in range(3)]
    assert (
        bitset.needs(others, ids).tolist()
        == sum(words.test(set_, ids).astype(int) for set_ in others).tolist()
    )


@settings(max_examples=200)
@given(sets(), st.integers(0, 600), KEYS)
def test_what_is_chosen_is_the_same(case: Any, wanted: int, key: int) -> None:
    there, _ = case
    ours = bitset.choose(there, wanted, key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bitset, "_native", None)
        patch.setattr(native, "calls", None)
        theirs = bitset.choose(there, wanted, key)
    assert ours.tolist() == theirs.tolist() and ours.dtype == theirs.dtype


@given(sets(), st.integers(0, 5000), KEYS)
def test_order_and_ranks_are_the_same(case: Any, count: int, key: int) -> None:
    there, rng = case
    ids = rng.integers(0, 1 << 62, count)
    before = ids.tolist()
    assert bitset.shuffled(ids, key).tolist() == (words.shuffle(ids, key).tolist() if count > 1 else before)
    assert ids.tolist() == before
    total = words.count(there)
    ranks = rng.integers(0, total, count if total else 0)
    assert bitset.select(there, ranks).tolist() == words.select(there, ranks).tolist()


@given(st.lists(st.integers(-(1 << 70), 1 << 70), max_size=6))
def test_keys_are_the_same(parts: list[int]) -> None:
    ours = rnd.key(*parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "calls", None)
        assert rnd.key(*parts) == ours


def test_what_lies_beyond_is_refused_and_nothing_is_changed() -> None:
    there = Bits.full(128).words
    for ids in ([0, 128], [-1], [1 << 62]):
        for function in (bitset.test, bitset.put, bitset.drop):
            with pytest.raises(IndexError):
                function(there, np.array(ids, np.int64))
    assert bitset.count(there) == 128
    for rank in (128, -1):
        with pytest.raises(IndexError):
            bitset.select(there, np.array([rank]))
    assert native.calls is not None
    wrong: list[tuple[Any, ...]] = [
        (there, np.zeros(3, np.int32), np.zeros(3, np.bool_)),
        (there.astype(np.uint32), np.zeros(3, np.int64), np.zeros(3, np.bool_)),
        (there, np.zeros((3, 1), np.int64), np.zeros(3, np.bool_)),
        (there, np.zeros(3, np.int64), np.zeros(4, np.bool_)),
        (there[::-1], np.zeros(3, np.int64), np.zeros(3, np.bool_)),
    ]
    for arguments in wrong:
        with pytest.raises(ValueError):
            native.calls.test(*arguments)
    with pytest.raises(ValueError):
        native.calls.draw(there, 1, 10, 129, np.zeros(3, np.int64))
    with pytest.raises(ValueError):
        native.calls.members(there, np.zeros(127, np.int64))
    with pytest.raises((ValueError, BufferError)):
        there.flags.writeable = False
        native.calls.put(there, np.zeros(3, np.int64))
    with pytest.raises(TypeError):
        rnd.key(1.5)  # type: ignore[arg-type]


def test_the_environment_switches_them_off() -> None:
    code = "from headrace.core import native, bits; assert native.calls is None; print(bits.Bits.full(70).count())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "HEADRACE_NATIVE": "0"},
        capture_output=True,
        text=True,
    )
    assert run.stdout == "70\n", run.stderr
