"""A cache that nobody split: it is split by what the job measures, and nobody sees it in the batches."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.coordinate import own_split
from tests.loader.helpers import assert_same, drain

SHAPE = (64, 64, 3)
SAMPLES = 300


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_split, "LOOK_EVERY", 0.1)


def loader(*, bandwidth: float | None = None, spin: float = 0.0, **options: Any) -> Any:
    """Samples of 4 KB that take 12 KB decoded; the cache holds a quarter of them encoded."""
    source = hr.synthetic.source(SAMPLES, bytes_per_sample=4096, shape=SHAPE, bandwidth=bandwidth, classes=9)
    recipe = hr.Recipe(source, decode=hr.synthetic.decode(cost=spin))
    options = {"batch_size": 10, "shuffle": True, "seed": 1, "cache": SAMPLES * 1024, **options}
    return hr.DataLoader(recipe, **options)


def budgets(made: Any) -> tuple[int, int]:
    found = made.stats().cache
    return found["encoded"].budget, found["decoded"].budget


@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_slow_storage_encoded_samples_are_kept(num_workers: int) -> None:
    with loader(bandwidth=2e6, num_workers=num_workers) as made:
        assert budgets(made)[0] == 0
        for _ in range(6):
            drain(made)
        encoded, decoded = budgets(made)
        assert encoded > decoded
        stats = made.stats()
        assert stats.cache["encoded"].samples > stats.cache["decoded"].samples
        assert encoded + decoded == SAMPLES * 1024
        assert sum(form.bytes for form in stats.cache.values()) <= SAMPLES * 1024


@pytest.mark.slow
def test_with_a_slow_decode_decoded_samples_stay() -> None:
    with loader(spin=0.002, num_workers=2) as made:
        for _ in range(3):
            drain(made)
        encoded, decoded = budgets(made)
        assert decoded > encoded


def test_a_split_that_was_given_stays() -> None:
    with loader(bandwidth=2e6, num_workers=2, split=(0, 1, 0)) as made:
        for _ in range(4):
            drain(made)
        assert budgets(made) == (0, SAMPLES * 1024)


def test_batches_are_the_same_while_the_split_moves() -> None:
    with loader(bandwidth=2e6, num_workers=2) as moving, loader(num_workers=0, split=(0, 1, 0)) as still:
        for _ in range(5):
            assert_same(drain(moving), drain(still))
        assert budgets(moving)[0] > 0, "it has moved"
