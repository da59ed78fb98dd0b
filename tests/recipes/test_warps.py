"""Images moved, turned, sheared and seen from elsewhere. (Against torchvision's own: test_torchvision.py.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from headrace import image
from headrace.core.errors import OptionError
from headrace.recipes import Recipe
from tests.recipes.helpers import MemorySource, picture, png, rows

SOURCE = picture(45, 70, 6)
HEIGHT, WIDTH = SOURCE.shape[:2]


def matrix(*rows: Any) -> np.ndarray:
    return np.array([*rows, (0, 0, 1)], float)


def shift(x: float, y: float) -> np.ndarray:
    return matrix((1, 0, x), (0, 1, y))


@pytest.mark.parametrize("way", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("center", [None, (10, 3)])
@pytest.mark.parametrize(
    ("angle", "across", "down", "scale", "shears"),
    [
        (0, 0.1, -0.2, 1, (0, 0)),
        (25, 0, 0, 1, (0, 0)),
        (-100, 0.3, 0.04, 1.7, (12, 0)),
        (10, 0, 0, 0.6, (-9, 14)),
    ],
)
def test_affine(
    angle: float, across: float, down: float, scale: float, shears: Any, center: Any, way: str
) -> None:
    """Shears across and down, a turn and a scale around the centre, then a shift by whole pixels."""
    turn, first, second = np.radians([angle, *shears])
    x, y = center or (WIDTH / 2, HEIGHT / 2)
    forth = (
        shift(x + round(across * WIDTH), y + round(down * HEIGHT))
        @ matrix((np.cos(turn), -np.sin(turn), 0), (np.sin(turn), np.cos(turn), 0))
        @ np.diag([scale, scale, 1])
        @ matrix((1, 0, 0), (-np.tan(second), 1, 0))
        @ matrix((1, -np.tan(first), 0), (0, 1, 0))
        @ shift(-x, -y)
    )
    back = np.linalg.inv(forth)
    pillow = Image.Resampling[way.upper()]
    want = Image.fromarray(SOURCE).transform(
        (WIDTH, HEIGHT), Image.Transform.AFFINE, back[:2].ravel().tolist(), pillow, fillcolor=(1, 2, 3)
    )
    step = image.affine(0, interpolation=way, fill=(1, 2, 3), center=center)
    found = step.apply(SOURCE, (angle, across, down, scale, *shears))
    assert (found != np.asarray(want)).mean() < 0.01  # where rounding decides between two pixels
    assert step.apply(SOURCE[..., :1].copy(), (angle, across, down, scale, *shears)).shape == (
        HEIGHT,
        WIDTH,
        1,
    )


def test_what_affine_draws() -> None:
    step = image.affine((-10, 30), translate=(0.1, 0.3), scale=(0.5, 2), shear=(1, 2, 3, 4))
    drawn = np.array(step.parameters(np.random.default_rng(0).random((3000, step.draws))))
    low, high = (-10, -0.1, -0.3, 0.5, 1, 3), (30, 0.1, 0.3, 2, 2, 4)
    np.testing.assert_allclose(drawn.min(axis=0), low, atol=0.05)
    np.testing.assert_allclose(drawn.max(axis=0), high, atol=0.05)
    assert np.abs(np.corrcoef(drawn.T) - np.eye(6)).max() < 0.1
    assert image.affine(0, shear=5).shear == ((-5, 5), (0, 0))
    assert image.affine(9).degrees == (-9, 9)
    assert not image.affine((4, 4), shear=(2, 2)).random
    assert image.affine(0, translate=(0, 0.1)).random and image.affine(0, scale=(1, 2)).random


def test_perspective_moves_the_corners() -> None:
    """Each quarter of the image is found where its corner went, and beyond lies fill."""
    quarters = np.array([[60, 120], [240, 180]], np.uint8)
    source = np.repeat(np.repeat(quarters, 30, axis=0), 40, axis=1)[..., None].repeat(3, axis=2)
    step = image.perspective(0.5, 1.0, fill=9)
    numbers = [0.5, 0.0, 0.9, 0.99, 0.0, 0.5, 0.7, 0.7]
    found = step.apply(source, numbers)
    most = (int(0.5 * 40) + 1, int(0.5 * 30) + 1)
    corners = [
        (int(0.5 * most[0]), 0),
        (80 - most[0] + int(0.9 * most[0]), int(0.99 * most[1])),
        (80 - most[0], 60 - most[1] + int(0.5 * most[1])),
        (int(0.7 * most[0]), 60 - most[1] + int(0.7 * most[1])),
    ]
    for at, (x, y) in enumerate(corners):
        inward = (x + (3 if at in (0, 3) else -3), y + (3 if at < 2 else -3))
        assert found[inward[1], inward[0]].tolist() == [60 * (at + 1)] * 3, at
    assert (found[:, 0] == 9).all() and (found[-1] == 9).all()


def test_how_often_and_where_corners_move() -> None:
    step = image.perspective(0.4, 0.3)
    drawn = step.parameters(np.random.default_rng(0).random((3000, step.draws)))
    hits = np.array([row for row in drawn if row is not None])
    assert abs(len(hits) / 3000 - 0.3) < 0.03 and hits.shape[1] == 8
    assert hits.min() < 0.01 and hits.max() > 0.99  # whatever decided that it happens
    np.testing.assert_array_equal(image.perspective(0.0, 1.0).apply(SOURCE, [0.7] * 8), SOURCE)
    assert image.perspective(p=1).random and not image.perspective(p=0).random


def test_in_a_recipe() -> None:
    steps = [image.resize((30, 40)), image.affine(20, translate=(0.2, 0.2)), image.perspective(p=0.5)]
    recipe = Recipe(MemorySource([png(SOURCE)] * 6), image.decode(), steps)
    (found,) = rows(recipe, range(6))
    np.testing.assert_array_equal(found, rows(recipe, range(5, -1, -1), caches=True)[0][::-1])
    assert len({row.tobytes() for row in found}) == 6


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: image.affine(5, translate=(0.1, 2)), "from 0 to 1"),
        (lambda: image.affine(5, translate=(0.1,)), "from 0 to 1"),
        (lambda: image.affine(5, scale=(0, 1)), "scale"),
        (lambda: image.affine(5, shear=(1, 2, 3)), "one number, two or four"),
        (lambda: image.affine((5, 1)), "degrees"),
        (lambda: image.affine(5, interpolation="area"), "nearest, bilinear or bicubic"),
        (lambda: image.perspective(1.5), "a share"),
        (lambda: image.perspective(0.5, 2), "probability"),
        (lambda: image.perspective(interpolation="area"), "nearest, bilinear or bicubic"),
    ],
)
def test_options_that_cannot_be_obeyed_are_refused(make: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make()
