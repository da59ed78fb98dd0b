"""The global order of an epoch: a stable, uniform, pure permutation."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.sampling import epoch_order

SIZES = st.one_of(st.integers(0, 70), st.integers(0, 5000))
WORDS = st.integers(-(2**70), 2**70)


@given(SIZES, WORDS, WORDS, st.booleans())
def test_order_is_a_permutation(size: int, seed: int, epoch: int, shuffle: bool) -> None:
    order = epoch_order(size, seed, epoch, shuffle)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(size))


@given(SIZES, WORDS, WORDS)
def test_order_is_a_pure_function(size: int, seed: int, epoch: int) -> None:
    first = epoch_order(size, seed, epoch)
    np.random.seed(0)
    epoch_order(size + 1, seed, epoch)
    assert np.array_equal(epoch_order(size, seed, epoch), first)


@given(SIZES, WORDS, WORDS)
def test_without_shuffle_the_order_is_the_dataset(size: int, seed: int, epoch: int) -> None:
    assert np.array_equal(epoch_order(size, seed, epoch, shuffle=False), np.arange(size))


def test_the_order_never_changes_between_versions() -> None:
    """A checkpoint holds a position in this order: changing it would repeat and lose samples."""
    assert epoch_order(10, 0, 0).tolist() == [1, 2, 6, 8, 9, 3, 7, 5, 0, 4]
    assert epoch_order(10, 0, 1).tolist() == [2, 1, 3, 4, 5, 7, 0, 8, 6, 9]
    assert epoch_order(10, 1, 0).tolist() == [7, 1, 6, 9, 3, 0, 8, 5, 2, 4]
    assert epoch_order(7, -3, 2**40).tolist() == [2, 6, 3, 4, 5, 0, 1]
    large = epoch_order(100_000, 1234, 5)
    assert large[:5].tolist() == [88522, 8897, 40663, 43149, 29455]
    assert large[-5:].tolist() == [90049, 95305, 21946, 47628, 405]
    assert int((large * np.arange(100_000)).sum()) == 249918232486271


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = {epoch_order(50, seed, epoch).tobytes() for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400
    assert epoch_order(50, 3, 5).tobytes() != epoch_order(50, 5, 3).tobytes()


def test_every_sample_is_as_likely_at_every_position() -> None:
    size, epochs = 11, 4400
    counts = np.zeros((size, size))
    for epoch in range(epochs):
        counts[np.arange(size), epoch_order(size, 7, epoch)] += 1
    expected = epochs / size
    chi_square = ((counts - expected) ** 2 / expected).sum()
    # (size - 1)^2 = 100 degrees of freedom: mean 100, standard deviation sqrt(200); seven of them either side.
    assert 100 - 7 * 200**0.5 < chi_square < 100 + 7 * 200**0.5


def test_all_permutations_of_a_small_set_come_up_equally() -> None:
    seen: dict[tuple[int, ...], int] = {}
    draws = 24 * 300
    for seed in range(draws):
        order = tuple(epoch_order(4, seed, 0).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 24
    chi_square = sum((count - 300) ** 2 / 300 for count in seen.values())
    assert chi_square < 23 + 7 * 46**0.5


def test_consecutive_epochs_are_not_correlated() -> None:
    ranks = np.array([np.argsort(epoch_order(5000, 1, epoch)) for epoch in range(6)])
    correlation = np.corrcoef(ranks) - np.eye(6)
    assert np.abs(correlation).max() < 6 / 5000**0.5
    neighbours = np.corrcoef(epoch_order(50_000, 1, 0)[:-1], epoch_order(50_000, 1, 0)[1:])[0, 1]
    assert abs(neighbours) < 6 / 50_000**0.5
