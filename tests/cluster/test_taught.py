"""What a helper keeps of what it was taught, and for how long. There is no server, so samples come from storage."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.cluster.messages import Grant, Teach
from headrace.cluster.taught import Known, Recipes
from headrace.recipes.plain import source_to_plain
from tests.cluster import user_steps
from tests.cluster.nodes import write_photos
from tests.descriptors import none_left_open

PHOTOS = 8


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder, PHOTOS)
    return folder


def taught(folder: Path, *steps: Any) -> Known:
    """A recipe that ends in these steps."""
    made = hr.Recipe(
        source=hr.files(sorted(folder.glob("*.jpg"))),
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(16), *steps],
    )
    source = json.dumps(source_to_plain(made.source)).encode()
    definition = json.dumps(made.to_dict(source=False)).encode()
    key = made.rows_key
    teach = Teach("a recipe", made.source.fingerprint(), source, definition, False, b"", key)
    return Known(teach, str(folder / "no.sock"), (user_steps.__name__,))


def grant(rows: int) -> Grant:
    return Grant(1, "a recipe", 0, 0, 0, np.arange(rows).tobytes())


@pytest.mark.parametrize("steps", [(), (user_steps.half,)], ids=["headrace's own", "of the user's"])
def test_nothing_of_a_recipe_that_was_forgotten_stays_open(photos: Path, steps: tuple[Any, ...]) -> None:
    """A cluster sees thousands of recipes, where each trial of a search has one of its own."""
    recipes = Recipes()
    taught(photos, *steps).make(grant(2))  # (whatever is opened once and for all is open now)
    with none_left_open():
        for number in range(Recipes.MOST + 2):
            recipes.keep(str(number), taught(photos, *steps))
        oldest = recipes.find("2")
        assert oldest is not None
        for number in range(Recipes.MOST):
            recipes.keep(f"another {number}", taught(photos, *steps))
        assert recipes.find("2") is oldest and recipes.find("3") is None
        recipes = Recipes()
        rows, faults, _ = oldest.make(grant(2))  # (it was forgotten while it is used)
        assert len(rows[0]) == 2 and not faults
        last = weakref.ref(oldest)
        del oldest, recipes
        assert last() is None, "it goes with whoever had it last, and then there is room for another"
    assert rows[0].any(), "what was made is there as long as somebody has it"


def test_memory_for_orders_is_that_of_the_largest(photos: Path) -> None:
    """A loader's orders are of many sizes, and grow while others help."""
    larger = hr.image.resize(100)
    grown, at_once = taught(photos, larger), taught(photos, larger)
    for rows in range(1, PHOTOS + 1):
        made, faults, _ = grown.make(grant(rows))
        assert len(made[0]) == rows and not faults
    wanted, _, _ = at_once.make(grant(PHOTOS))
    assert np.array_equal(made[0], wanted[0])
    assert grown.bench()._arena.in_use == at_once.bench()._arena.in_use
