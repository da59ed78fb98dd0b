"""Recipes over parts of one source share one cache."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import headrace as hr
from tests.loader.helpers import counting, flat, targets


def test_train_and_val_recipes_over_one_source_share_their_cache(place: Path) -> None:
    whole, source = counting(40)
    train, val = whole.split(0.75)
    shared = {"share": True, "cache": "8MiB", "num_workers": 1, "batch_size": 5}
    with hr.DataLoader(train, shuffle=True, **shared) as first, hr.DataLoader(val, **shared) as second:
        # (In the first epoch, samples may be read before it is known how much room one needs, and are not kept.)
        for _ in range(2):
            assert sorted(flat(targets(first)) + flat(targets(second))) == list(range(40))
        read = source.reads.copy()
        # Another recipe over all of it finds everything there, also one that ends in another way.
        cast = dataclasses.replace(whole, target_transform=int)
        with hr.DataLoader(cast, **shared) as both:
            assert flat(targets(both)) == list(range(40))
        # (but for one, which each loader prepares to see what its batches look like)
        assert (source.reads - read).sum() <= 1
