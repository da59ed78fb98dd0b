"""A loader that shares learns, too: what is its own."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.measure import load_profile


@pytest.mark.usefixtures("place")
def test_a_loader_that_shares_learns_what_is_its_own() -> None:
    source = hr.synthetic.source(200, bytes_per_sample=4096, shape=(16, 16, 3), classes=9)
    shared = hr.Recipe(source, decode=hr.synthetic.decode())
    with hr.DataLoader(
        shared, batch_size=10, shuffle=True, seed=1, cache="8MiB", share=True, num_workers=1
    ) as made:
        for _ in range(3):
            assert sum(len(batch[0]) for batch in made) == 200
    found = load_profile(shared)
    assert found is not None and found.seen is not None
    assert found.seen.encoded == 4096
    # Rows that were copied would make stages look slower than they are.
    assert found.seen.decode is None and found.seen.augment is None
