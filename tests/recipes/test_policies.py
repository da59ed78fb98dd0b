"""RandAugment, TrivialAugment and AutoAugment as steps. (Against torchvision's own: test_torchvision.py.)"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from headrace import image
from headrace.core.errors import OptionError
from headrace.recipes import Recipe
from headrace.recipes.image import policies
from tests.recipes.helpers import MemorySource, jpeg, picture, rows

STEPS = {
    "rand": image.rand_augment(),
    "rand, many": image.rand_augment(5, 20, interpolation="bilinear", fill=(1, 2, 3)),
    "trivial": image.trivial_augment(fill=7),
    "auto": image.auto_augment(),
    "own policy": image.auto_augment([(("Invert", 1.0, None), ("ShearX", 0.5, 9))]),
}


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", STEPS)
def test_a_row_is_a_pure_function_of_seed_epoch_and_sample(name: str, mode: str) -> None:
    blobs = [jpeg(picture(40, 50, number)) for number in range(12)]
    recipe = Recipe(MemorySource(blobs), image.decode(mode), [image.resize((32, 36)), STEPS[name]])
    (whole,) = rows(recipe, range(12), epoch=3)
    (backwards,) = rows(recipe, range(11, -1, -1), epoch=3, caches=True)
    np.testing.assert_array_equal(whole, backwards[::-1])
    (other,) = rows(recipe, range(12), epoch=4)
    assert (whole != other).any()
    assert whole.shape == (12, 32, 36, 3 if mode == "RGB" else 1)
    assert "random" not in name and recipe.lead == 1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", [*policies.RAND, "Invert"])
def test_every_operation_keeps_size_and_input(name: str, channels: int) -> None:
    source = picture(30, 41)[..., :channels].copy()
    before = source.copy()
    for negative in (False, True) if name in policies._SIGNED else (False,):
        found = image.trivial_augment().apply(
            source, [(name, None if name in policies._PLAIN else 30, negative)]
        )
        assert found.shape == source.shape and found.dtype == np.uint8
    np.testing.assert_array_equal(source, before)


def test_what_is_chosen_how_often() -> None:
    numbers = np.random.default_rng(0).random((28_000, 16))
    chosen = Counter(name for row in image.rand_augment().parameters(numbers) for name, _, _ in row)
    assert set(chosen) == set(policies.RAND)
    assert all(abs(count - 4000) < 400 for count in chosen.values())
    trivial = image.trivial_augment().parameters(numbers)
    ats = Counter(at for ((_, at, _),) in trivial if at is not None)
    assert set(ats) == set(range(31))
    negative = [sign for ((name, _, sign),) in trivial if name == "Rotate"]
    assert 0.45 < np.mean(negative) < 0.55
    assert not any(sign for ((name, _, sign),) in trivial if name in ("Posterize", "Solarize", "Equalize"))
    auto = image.auto_augment().parameters(numbers[:, :5])
    assert {len(row) for row in auto} == {0, 1, 2}


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: image.rand_augment(99), "from 0 to 8 operations"),
        (lambda: image.rand_augment(2, 31), "from 0 to 30"),
        (lambda: image.rand_augment(interpolation="area"), "nearest, bilinear or bicubic"),
        (lambda: image.trivial_augment(num_magnitude_bins=0), "at least one"),
        (lambda: image.trivial_augment(fill=300), "from 0 to 255"),
        (lambda: image.auto_augment("cars"), "'imagenet', or a list of pairs"),
        (lambda: image.auto_augment([]), "an empty policy"),
        (lambda: image.auto_augment([(("Blur", 1.0, 3), ("Invert", 1.0, None))]), "no pair of"),
        (
            lambda: image.auto_augment([(("ShearX", 1.0, None), ("Invert", 1.0, None))]),
            "ShearX needs a magnitude",
        ),
    ],
)
def test_wrong_options_are_refused(make: Any, what: str) -> None:
    with pytest.raises(OptionError, match=what):
        make()
