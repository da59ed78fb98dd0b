"""Counter-based randomness: stable for ever, uniform, and independent between samples, positions and keys."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import random as rnd

WORD = st.integers(0, 2**64 - 1)


def test_numbers_never_change_between_versions() -> None:
    """Batches are promised bit for bit, so the numbers are part of the interface."""
    assert [rnd.mix(x) for x in (0, 1, 2**64 - 1)] == [
        0xE220A8397B1DCDAF,
        0x910A2DEC89025CC1,
        0xE4D971771B652C20,
    ]
    assert rnd.key() == 0
    assert rnd.key(0) == 0x8B4FDA8C892B50E
    assert rnd.key(0, 0) == 0x813C937E1785CE47
    assert rnd.key(1, 2, 3) == 0xCFFBD637B0880F8B
    assert rnd.key(-1) == 0x68631D79EEAD940D
    assert rnd.bits(42, np.array([0, 1, 2**40]), 2).tolist() == [
        [0xF4ABD143FEB24055, 0x7C816738C12903B2],
        [0x1CF62FBA89BD67D4, 0x40CE0EFC3EC8EED3],
        [0xEF3CE98372841F71, 0x105F840CBAB69AFF],
    ]
    assert rnd.uniforms(42, np.array([0, 1, 7]), 2).tolist() == [
        [0.9557467261317436, 0.48634953628166855],
        [0.11313150695945273, 0.2531442037423265],
        [0.7345673163478618, 0.9389812024539482],
    ]


@given(st.lists(WORD, min_size=1, max_size=20))
def test_mix_of_an_array_is_mix_of_each_word(words: list[int]) -> None:
    array = np.array(words, np.uint64)
    kept = array.copy()
    assert rnd.mix_many(array).tolist() == [rnd.mix(word) for word in words]
    assert np.array_equal(array, kept)


def test_keys_differ_by_order_and_count_of_words() -> None:
    keys = [rnd.key(a, b) for a in range(60) for b in range(60)]
    keys += [rnd.key(a) for a in range(60)] + [rnd.key(a, b, 0) for a in range(60) for b in range(60)]
    assert len(set(keys)) == len(keys)


@given(WORD, st.lists(st.integers(0, 2**62), min_size=1, max_size=30), st.integers(1, 5), st.data())
def test_numbers_do_not_depend_on_how_the_array_is_cut(
    key: int, indices: list[int], count: int, data: st.DataObject
) -> None:
    whole = rnd.bits(key, np.array(indices, np.int64), count)
    at = data.draw(st.integers(0, len(indices)))
    parts = [rnd.bits(key, np.array(part, np.int64), count) for part in (indices[:at], indices[at:])]
    assert np.array_equal(np.concatenate(parts), whole)
    # Asking for fewer positions gives the same first ones.
    assert np.array_equal(rnd.bits(key, np.array(indices, np.int64), 1), whole[:, :1])


@given(WORD, st.integers(0, 2**62), st.integers(1, 40))
def test_uniforms_lie_in_the_half_open_interval(key: int, start: int, count: int) -> None:
    values = rnd.uniforms(key, np.arange(start, start + count), 3)
    assert values.shape == (count, 3)
    assert (values >= 0).all()
    assert (values < 1).all()


def test_the_largest_word_is_still_below_one() -> None:
    top = (np.array([2**64 - 1], np.uint64) >> np.uint64(11)) * np.float64(2.0**-53)
    assert top[0] < 1.0


def test_uniforms_are_uniform_for_consecutive_samples_and_positions() -> None:
    cells, n = 64, 64 * 500
    for values in (
        rnd.uniforms(rnd.key(1, 2), np.arange(n))[:, 0],
        rnd.uniforms(rnd.key(1), np.array([3]), n)[0],
    ):
        counts = np.histogram(values, cells, (0, 1))[0]
        chi_square = ((counts - 500) ** 2 / 500).sum()
        assert abs(chi_square - (cells - 1)) < 7 * (2 * (cells - 1)) ** 0.5


def test_each_bit_is_fair() -> None:
    words = rnd.bits(9, np.arange(20_000))[:, 0]
    ones = [int(((words >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)]
    assert max(abs(count - 10_000) for count in ones) < 6 * 20_000**0.5 / 2


def test_streams_are_independent() -> None:
    """Neighbouring keys, samples and positions: no correlation beyond chance."""
    n = 20_000
    columns = [rnd.uniforms(rnd.key(seed, epoch), np.arange(n), 3) for seed in range(3) for epoch in range(3)]
    streams = np.concatenate(columns, axis=1).T
    shifted = np.roll(streams, 1, axis=1)
    correlation = np.corrcoef(np.concatenate([streams, shifted])) - np.eye(2 * len(streams))
    assert np.abs(correlation).max() < 6 / n**0.5


def test_keys_avalanche() -> None:
    """Each bit of a word flips about half of the key's bits."""
    flips = [bin(rnd.key(5, 1 << bit) ^ rnd.key(5, 0)).count("1") for bit in range(64)]
    assert 24 < sum(flips) / 64 < 40
    assert min(flips) > 8


@given(WORD)
def test_global_generators_follow_the_word_alone(word: int) -> None:
    saved = random.getstate(), np.random.get_state()
    try:
        rnd.seed_global(word)
        first = random.random(), np.random.random()
        rnd.seed_global(word)
        assert (random.random(), np.random.random()) == first
        rnd.seed_global(word ^ 1)
        assert random.random() != first[0]
    finally:
        random.setstate(saved[0])
        np.random.set_state(saved[1])
