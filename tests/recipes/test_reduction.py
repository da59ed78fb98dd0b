"""JPEG images are decoded for the cache as small as all crops allow, and no smaller."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from headrace import image
from headrace.core.forms import Form
from headrace.recipes import Recipe, compile_recipe
from headrace.recipes.image import fallback, kernels
from headrace.recipes.image.framing import Framing
from headrace.recipes.image.reduction import Floor, floor_of
from headrace.recipes.image.rowspec import SCALES, STATUS_BAD_JOB, STATUS_MISMATCH
from tests.recipes.helpers import MemorySource, jpeg, order, picture, png, rows, run

NEARLY = 1 - 2**-53
"""The largest number that is ever drawn."""


def crop_of(step: Any, height: int, width: int, numbers: list[float]) -> tuple[float, float]:
    """The sides that a step cuts from an image with such random numbers, before it resamples."""
    framing = Framing(np.array([float(width)]), np.array([float(height)]))
    step.fold(framing, np.array([numbers]))
    return float(framing.y.span[0]), float(framing.x.span[0])


unit = st.floats(0, NEARLY) | st.sampled_from([0.0, NEARLY])
side = st.integers(1, 8000)
small = st.integers(1, 300)


@settings(deadline=None, max_examples=200)
@given(
    size=st.tuples(side, side),
    out=st.tuples(small, small),
    scale=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted),
    ratio=st.tuples(st.floats(0.2, 4), st.floats(0.2, 4)).map(sorted),
    numbers=st.lists(unit, min_size=22, max_size=22),
)
@example((2000, 3000), (224, 224), [0.08, 1], [3 / 4, 4 / 3], [0.0] * 22)
@example((400, 8000), (100, 100), [1, 1], [1, 1], [0.5] * 22)
def test_no_crop_of_a_reduced_image_is_enlarged(
    size: tuple[int, int], out: tuple[int, int], scale: list[float], ratio: list[float], numbers: list[float]
) -> None:
    step = image.random_resized_crop(out, scale=(scale[0], scale[1]), ratio=(ratio[0], ratio[1]))
    floor = floor_of([image.horizontal_flip(), step])
    assert floor is not None
    factor = int(floor.scales(*size))
    assert factor in SCALES
    if factor > 1:
        height, width = crop_of(step, -(-size[0] // factor), -(-size[1] // factor), numbers)
        assert height >= out[0] and width >= out[1]


@pytest.mark.parametrize(
    ("step", "size", "scale"),
    [
        (image.random_resized_crop(224), (375, 500), 1),
        (image.random_resized_crop(224), (1500, 2000), 1),  # the least crop is 424 pixels wide
        (image.random_resized_crop(224), (1570, 2100), 1),  # 444.8
        (image.random_resized_crop(224), (1584, 2112), 2),  # 448.02
        (image.random_resized_crop(224), (4000, 6000), 4),
        (image.random_resized_crop(224, scale=(0.35, 1)), (1500, 2000), 2),
        (image.random_resized_crop(112), (1500, 2000), 2),
        (image.random_resized_crop(32), (4000, 6000), 8),
        (image.random_resized_crop(224), (446, 20000), 1),  # too low for a square crop of half its height
        (image.resize((100, 200)), (800, 1600), 8),
        (image.resize((100, 200)), (793, 1593), 8),
        (image.resize((100, 200)), (792, 1600), 4),
    ],
)
def test_images_are_reduced_as_far_as_that(step: Any, size: tuple[int, int], scale: int) -> None:
    floor = floor_of([image.vertical_flip(), step])
    assert floor is not None
    assert floor.scales(*size) == scale
    assert floor.scales([size[0], 1], [size[1], 1]).tolist() == [scale, 1]
    if scale < 8 and isinstance(floor, Floor) and floor.pixels:
        # One step further, the least crop would be enlarged (or the image is too low for any).
        factor = 2 * scale
        height, width = crop_of(step, -(-size[0] // factor), -(-size[1] // factor), [0.0] * 22)
        assert height < step.height or width < step.width


@pytest.mark.parametrize(
    "steps",
    [
        [image.random_resized_crop(8, antialias=True)],
        [image.random_resized_crop(8, interpolation="nearest")],
        [image.random_resized_crop(8, interpolation=["bilinear", "nearest"])],
        [image.random_resized_crop(8, shrink_on_load=False)],
        [image.random_resized_crop(8, scale=(0, 1))],
        [image.random_crop(8)],
        [image.random_crop(40), image.random_resized_crop(8)],
        [image.horizontal_flip(), image.resize(8)],
        [image.color_jitter(0.5), image.random_resized_crop(8)],
        [lambda pixels: pixels, image.random_resized_crop(8)],
        [image.horizontal_flip()],
        [image.center_crop(90), image.random_resized_crop(8)],
    ],
)
def test_what_depends_on_all_pixels_gets_all(steps: list[Any]) -> None:
    blob = jpeg(picture(90, 100))
    recipe = Recipe(MemorySource([blob]), image.decode(), steps)
    assert recipe.floor is None
    program = compile_recipe(recipe, caches_decoded=True)
    program.samples(order(recipe.source, [0]))
    work = order(recipe.source, [0], keep=True)
    program.samples(work)
    assert not work.faults and work.kept[0].shape[0] == 90


def turned(pixels: np.ndarray, orientation: int, **options: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=92, exif=exif.tobytes(), **options)
    return file.getvalue()


BLOBS = [
    *(turned(picture(101, 147, seed=turn), turn) for turn in range(1, 9)),
    turned(picture(120, 90, seed=9), 6, progressive=True),
    turned(picture(97, 130, seed=10)[:, :, 0], 3),
    jpeg(picture(33, 250, seed=11)),
    png(picture(100, 90, seed=12)),
]
SOURCE = MemorySource(BLOBS)
REDUCED = [image.random_resized_crop(7), image.horizontal_flip()]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("mode", [3, 1])
def test_both_kernels_decode_at_a_scale(scale: int, mode: int) -> None:
    infos = kernels.probe_many(BLOBS[:-1])
    sizes = -(-infos[:, 1:3] // scale)
    outs, others = ([np.zeros((int(h), int(w), mode), np.uint8) for w, h in sizes] for _ in range(2))
    scales = np.full(len(sizes), scale, np.int32)
    ws = kernels.Workspace()
    assert not kernels.decode_many(ws, BLOBS[:-1], None, outs, scales=scales).any()
    limit = kernels.MAX_PIXELS
    assert not fallback.decode_many(BLOBS[:-1], others, None, limit, False, scales).any()
    parts = [out[2:7, 3:9].copy() for out in outs]
    origins = np.full((len(parts), 2), (3, 2), np.int32)
    found = [np.zeros_like(part) for part in parts]
    if min(min(out.shape[:2]) for out in outs) >= 9:
        assert not kernels.decode_many(ws, BLOBS[:-1], None, found, origins=origins, scales=scales).any()
        for part, want in zip(found, parts, strict=True):
            np.testing.assert_array_equal(part, want)
    for ours, theirs in zip(outs, others, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_kernels_refuse_scales_and_sizes_that_do_not_go_together() -> None:
    blob = jpeg(picture(40, 50))
    for scale, shape, status in [(3, (14, 17, 3), STATUS_BAD_JOB), (2, (40, 50, 3), STATUS_MISMATCH)]:
        out, scales = np.zeros(shape, np.uint8), np.array([scale], np.int32)
        assert kernels.decode_many(kernels.Workspace(), [blob], None, [out], scales=scales).tolist() == [
            status
        ]
        assert fallback.decode_many([blob], [out], None, kernels.MAX_PIXELS, False, scales).tolist() == [
            status
        ]
    jobs = np.zeros(1, kernels.JOB)
    jobs["is_jpeg"] = jobs["orientation"] = 1
    jobs["width"], jobs["height"] = 50, 40
    jobs["box"] = jobs["clamp"] = (0, 0, 50, 40)
    spec, out = kernels.RowSpec(8, 8), np.zeros((1, 8, 8, 3), np.uint8)
    for scale, status in [(0, 0), (1, 0), (2, STATUS_MISMATCH), (5, STATUS_BAD_JOB), (-2, STATUS_BAD_JOB)]:
        jobs["scale"] = scale
        assert kernels.rows_many(kernels.Workspace(), [blob], jobs, out, spec).tolist() == [status]
        assert fallback.rows_many([blob], jobs, out, spec).tolist() == [status]


@pytest.mark.parametrize("native", [True, False])
def test_a_row_is_the_same_from_the_cache_and_from_a_part_of_the_file(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(kernels, "NATIVE", False)
    recipe = Recipe(SOURCE, image.decode(), REDUCED)
    indices = list(range(len(SOURCE)))
    program = compile_recipe(recipe, caches_decoded=True)
    for epoch in range(3):
        first = order(SOURCE, indices, keep=True, epoch=epoch)
        (expected,) = run(program, first)
        assert not first.faults
        (uncached,) = run(program, order(SOURCE, indices, epoch=epoch))
        (cached,) = run(program, order(SOURCE, indices, cached=first.kept, epoch=epoch))
        np.testing.assert_array_equal(uncached, expected)
        np.testing.assert_array_equal(cached, expected)
    shapes = [first.kept[index].shape[:2] for index in indices]
    assert shapes[0] == (26, 37) and shapes[5] == (37, 26)  # a quarter of 101 x 147, and of it turned
    assert shapes[10] == (17, 125)
    assert shapes[11] == (100, 90)  # no JPEG


def test_reduced_images_look_like_those_without_a_cache() -> None:
    source = MemorySource([jpeg(picture(480, 640, seed)) for seed in range(3)])
    augment = [image.random_resized_crop(64, scale=(0.3, 1)), image.horizontal_flip()]
    recipe, whole = (Recipe(source, image.decode(reduce=reduce), augment) for reduce in (True, False))
    assert recipe.floor is not None and recipe.floor.scales(480, 640) == 4
    for epoch in range(4):
        (cached,) = rows(recipe, range(3), caches=True, epoch=epoch)
        for other in (rows(recipe, range(3), epoch=epoch), rows(whole, range(3), epoch=epoch)):
            apart = np.abs(cached.astype(int) - other[0].astype(int)).mean(axis=(1, 2, 3))
            assert (apart < 4).all(), apart


def test_without_reducing_pixels_are_the_same_with_and_without_a_cache() -> None:
    recipe = Recipe(SOURCE, image.decode(reduce=False), REDUCED)
    indices = list(range(len(SOURCE)))
    assert recipe.floor is None
    np.testing.assert_array_equal(rows(recipe, indices, caches=True)[0], rows(recipe, indices)[0])


def test_the_decoded_form_is_shared_by_recipes_that_reduce_alike() -> None:
    def keys(*steps: Any, **options: Any) -> tuple[str, str]:
        recipe = Recipe(SOURCE, image.decode(**options), steps)
        return recipe.fingerprint(Form.DECODED), recipe.share_key(Form.DECODED)

    crop = image.random_resized_crop
    first = keys(crop(224))
    assert first == keys(image.horizontal_flip(), crop(224), image.color_jitter(0.4), image.to_float())
    assert first == keys(crop(224, scale=(0.08, 0.5), interpolation="area"))
    for other in (crop(160), crop(224, scale=(0.2, 1)), crop(224, antialias=True), image.random_crop(160)):
        assert not set(first) & set(keys(other))
    assert keys(crop(224, antialias=True)) == keys(image.random_crop(160)) == keys(image.color_jitter(0.4))
    assert (
        keys(crop(224), reduce=False)
        == keys(crop(160), reduce=False)
        == keys(image.random_crop(9), reduce=False)
    )
