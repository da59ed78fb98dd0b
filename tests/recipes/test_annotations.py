"""Masks and boxes follow their images: what lies where in an image lies there in what goes with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import headrace as hr
from headrace import image
from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.measure.loaded_samples import load_samples
from headrace.measure.preparing_thread import PreparingThread
from headrace.recipes import Recipe, compile_recipe
from headrace.recipes.image.annotations import Track
from headrace.recipes.image.framing import Framing
from tests.recipes.helpers import MemorySource, jpeg, order, png, read_only, run
from tests.recipes.test_forms import layout_of
from tests.sharing.fixtures import place as place  # (a host of the test's own)

NEAREST = {"interpolation": "nearest"}
SIZES = [(40, 60), (64, 33), (50, 50), (31, 77), (48, 40), (90, 64)]
FIXED: dict[str, list[Any]] = {
    "nothing": [image.resize((24, 32), **NEAREST)],
    "training": [
        image.random_resized_crop((20, 28), **NEAREST),
        image.horizontal_flip(),
        image.vertical_flip(),
    ],
    "validation": [image.resize(36, **NEAREST), image.center_crop((30, 26))],
    "padded": [image.random_crop((50, 44), padding=(3, 9), pad_if_needed=True), image.horizontal_flip()],
    "flipped, then padded": [
        image.vertical_flip(),
        image.horizontal_flip(),
        image.random_crop(70, pad_if_needed=True),
    ],
    "padded twice": [
        image.random_crop(66, pad_if_needed=True),
        image.resize((30, 44), **NEAREST),
        image.center_crop((40, 40)),
    ],
    "three resamplings": [
        image.resize(45, **NEAREST),
        image.random_crop(40),
        image.resize((64, 50), **NEAREST),
        image.horizontal_flip(),
        image.random_resized_crop(32, scale=(0.6, 1), **NEAREST),
    ],
    "beside the image": [image.random_crop((12, 16), padding=40)],
}


def noise(number: int) -> np.ndarray:
    """Labels in blocks of a few pixels, so that crops differ and neighbours do not."""
    height, width = SIZES[number]
    small = np.random.default_rng(number).integers(0, 200, (height // 5 + 1, width // 5 + 1), np.uint8)
    return np.kron(small, np.ones((5, 5), np.uint8))[:height, :width]


LABELS = [noise(number) for number in range(len(SIZES))]
BLOBS = [png(np.repeat(labels[..., None], 3, axis=2)) for labels in LABELS]
"""Images whose channels are their masks."""
INDICES = list(range(len(BLOBS)))


def masked(*steps: Any, **options: Any) -> Recipe:
    follow = options.pop("follow", image.mask())
    return Recipe(MemorySource(BLOBS, list(LABELS)), image.decode(), steps, follow=follow, **options)


# -- masks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("caches", [False, True])
def test_a_mask_is_the_image_s_channel(name: str, caches: bool) -> None:
    program = compile_recipe(masked(*FIXED[name]), caches_decoded=caches)
    assert program.layout is not None and program.layout.fields[1].dtype == "uint8"
    seen = set()
    for epoch in range(4):
        work = order(MemorySource(BLOBS), INDICES, epoch=epoch, keep=caches)
        pixels, masks = run(program, work)
        assert not work.faults
        np.testing.assert_array_equal(pixels[..., 1], masks)
        seen.add(masks.tobytes())
        if caches:
            cached = {index: read_only(value) for index, value in work.kept.items()}
            some = {index: value for index, value in cached.items() if index % 2}
            for from_cache in (cached, some):
                again = order(MemorySource(BLOBS), INDICES, epoch=epoch, cached=from_cache)
                np.testing.assert_array_equal(run(program, again)[1], masks)
    assert len(seen) == {"nothing": 1, "validation": 1, "beside the image": 3}.get(name, 4)


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.one_of(
            st.integers(9, 60).map(lambda side: image.resize(side, **NEAREST)),
            st.tuples(st.integers(9, 60), st.integers(9, 60)).map(lambda pair: image.resize(pair, **NEAREST)),
            st.tuples(st.integers(9, 60), st.integers(9, 60)).map(image.center_crop),
            st.builds(
                lambda size, padding: image.random_crop(size, padding=padding, pad_if_needed=True),
                st.integers(9, 60),
                st.integers(0, 20),
            ),
            st.integers(9, 60).map(lambda side: image.random_resized_crop(side, **NEAREST)),
            st.sampled_from([image.horizontal_flip(), image.vertical_flip(0.7), image.horizontal_flip(1.0)]),
        ),
        max_size=6,
    ),
    index=st.integers(0, len(BLOBS) - 1),
    seed=st.integers(0, 2**40),
)
def test_masks_follow_any_chain(steps: list[Any], index: int, seed: int) -> None:
    program = compile_recipe(masked(*steps), caches_decoded=False)
    ((pixels, mask),) = program.samples(order(MemorySource(BLOBS), [index], seed=seed))
    np.testing.assert_array_equal(pixels[1], mask)


def test_colours_are_the_image_s_alone() -> None:
    steps = [image.random_resized_crop(24, **NEAREST), image.horizontal_flip()]
    colours = [image.color_jitter(0.5, 0.5), image.gaussian_blur(3), image.grayscale(1.0)]
    last = [image.to_float(), image.random_erasing(1.0), image.layout(contiguous=True)]
    plain = run(compile_recipe(masked(*steps), caches_decoded=False), order(MemorySource(BLOBS), INDICES))
    painted = run(
        compile_recipe(masked(*steps, *colours, *last), caches_decoded=False),
        order(MemorySource(BLOBS), INDICES),
    )
    np.testing.assert_array_equal(plain[1], painted[1])
    assert painted[0].dtype == np.float32


@pytest.mark.parametrize("caches", [False, True])
def test_masks_lie_on_what_is_read_of_a_jpeg(caches: bool) -> None:
    """Only a part of it is decoded, at a lower resolution, and smoothed: edges are blurred, and nothing is moved."""
    labels = np.kron(np.random.default_rng(0).integers(0, 2, (6, 8), np.uint8), np.ones((80, 80), np.uint8))
    source = MemorySource([jpeg(np.repeat(labels[..., None] * 255, 3, axis=2))] * 16, [labels] * 16)
    steps = [image.random_resized_crop(64), image.horizontal_flip(), image.vertical_flip()]
    recipe = Recipe(source, image.decode(), steps, follow=image.mask())
    pixels, masks = run(compile_recipe(recipe, caches_decoded=caches), order(source, range(16)))
    assert 0.2 < masks.mean() < 0.8
    assert np.mean((pixels[..., 1] > 127) == masks) > 0.99


def write_masks(folder: Path) -> list[str]:
    """Masks as files: grey, with a palette, of 16 bits."""
    paths = []
    for number, labels in enumerate(LABELS):
        picture = Image.fromarray(labels)
        if number % 3 == 1:
            picture.putpalette(np.random.default_rng(1).integers(0, 256, 768, np.uint8).tobytes())
        elif number % 3 == 2:
            picture = Image.fromarray(labels.astype(np.uint16))
        paths.append(str(folder / f"{number}.png"))
        picture.save(paths[-1])
    return paths


def test_masks_are_read_from_files(tmp_path: Path) -> None:
    paths = write_masks(tmp_path)
    source = MemorySource(BLOBS, paths)
    recipe = Recipe(source, image.decode(), FIXED["training"], follow=image.mask(dtype="int64"))
    pixels, masks = run(compile_recipe(recipe, caches_decoded=False), order(source, INDICES))
    assert masks.dtype == np.int64
    np.testing.assert_array_equal(pixels[..., 0], masks)


def test_masks_of_images_that_are_as_they_were_decoded() -> None:
    source = MemorySource(BLOBS[:1] * 3, LABELS[:1] * 3)
    program = compile_recipe(Recipe(source, image.decode(), follow=image.mask()), caches_decoded=True)
    program.samples(order(source, [0]))
    kept: dict[int, Any] = {}
    for known in ((), (1,), (0, 1, 2)):
        work = order(source, [0, 1, 2], cached={index: kept[index] for index in known}, keep=True)
        pixels, masks = run(program, work)
        assert not work.faults
        np.testing.assert_array_equal(pixels[..., 0], masks)
        kept.update(work.kept)


def test_stages_may_work_on_some_of_the_rows() -> None:
    track = Track()
    sizes = {0: (40, 60), 1: (64, 33), 2: (50, 50)}
    for rows in ((2, 0), (1,), (0, 1, 2)):
        height, width = (np.array([sizes[row][side] for row in rows]) for side in (0, 1))
        framing = Framing(width.astype(float), height.astype(float))
        framing.x.crop(np.array([float(row) for row in rows]), 8)
        track.note(framing, rows, height, width)
    for row, size in sizes.items():
        shown = track.of(row)
        assert [(one.height, one.width) for one in shown] == [size] * 2
        assert [one.framing.x.start[one.at] for one in shown] == [row] * 2


def test_what_is_padded_has_a_label_of_its_own() -> None:
    steps = [image.random_crop((60, 70), padding=20, fill=7)]
    recipe = masked(*steps, follow=image.mask(fill=255))
    pixels, masks = run(compile_recipe(recipe, caches_decoded=False), order(MemorySource(BLOBS), [0, 2, 4]))
    assert (masks == 255).any()
    assert (pixels[..., 0][masks == 255] == 7).all()
    np.testing.assert_array_equal(np.where(masks == 255, 7, masks), pixels[..., 0])


def test_bad_masks_are_bad_samples(tmp_path: Path) -> None:
    paths = write_masks(tmp_path)
    Path(paths[0]).write_bytes(Path(paths[0]).read_bytes()[:-30])
    Image.fromarray(np.zeros((*SIZES[1], 3), np.uint8)).save(paths[1])
    Path(paths[2]).unlink()
    Image.fromarray(LABELS[3][1:]).save(paths[3])
    Image.fromarray(np.full(SIZES[4], 300, np.uint16)).save(paths[4])
    source = MemorySource(BLOBS, paths)
    recipe = Recipe(source, image.decode(), FIXED["training"], follow=image.mask())
    work = order(source, INDICES)
    pixels, masks = run(compile_recipe(recipe, caches_decoded=False), work)
    reasons = {row: fault.reason for row, fault in work.faults.items()}
    assert set(reasons) == {0, 1, 2, 3, 4}
    for row, words in enumerate(["0.png: ", "mode RGB", "No such file", "(30, 77)", "are no uint8"]):
        assert words in reasons[row]
    np.testing.assert_array_equal(pixels[5, ..., 0], masks[5])
    for odd in (str(tmp_path), 3, np.zeros((40, 60), np.float32)):
        work = order(MemorySource(BLOBS[:1]), [0])
        compile_recipe(
            Recipe(MemorySource(BLOBS[:1], [odd]), image.decode(), FIXED["training"], follow=image.mask()),
            caches_decoded=False,
        ).samples(work)
        assert work.faults


# -- boxes ---------------------------------------------------------------------------------------------------


def painted(number: int, boxes: np.ndarray) -> bytes:
    """A black image in which each box is filled with a colour of its own."""
    canvas = np.zeros((*SIZES[number], 3), np.uint8)
    for at, (left, top, right, bottom) in enumerate(boxes.astype(int).tolist()):
        canvas[top:bottom, left:right, at] = 255
    return png(canvas)


def some_boxes(number: int) -> np.ndarray:
    """Three boxes, which may cover each other: each has a channel."""
    height, width = SIZES[number]
    rng = np.random.default_rng(number)
    corners = [
        np.sort(rng.choice(side + 1, (2,), replace=False)) for _ in range(3) for side in (width, height)
    ]
    return np.array(
        [[*np.stack(corners[2 * at : 2 * at + 2], axis=1).reshape(-1)] for at in range(3)], np.float32
    )


BOXES = [some_boxes(number) for number in range(len(SIZES))]
PAINTED = [painted(number, boxes) for number, boxes in enumerate(BOXES)]


def detected(*steps: Any, **options: Any) -> Recipe:
    targets = [{"boxes": boxes, "labels": [5, 6, 7], "id": number} for number, boxes in enumerate(BOXES)]
    follow = options.pop("follow", image.boxes())
    return Recipe(MemorySource(PAINTED, targets), image.decode(), steps, follow=follow, **options)


@pytest.mark.parametrize("name", FIXED)
def test_boxes_lie_around_what_is_painted(name: str) -> None:
    """A pixel shows a box's colour exactly if its centre lies in the box: then boxes are exact to the pixel."""
    program = compile_recipe(detected(*FIXED[name], follow=image.boxes(min_size=0)), caches_decoded=False)
    some = 0
    for epoch in range(4):
        for pixels, target in program.samples(order(MemorySource(PAINTED), INDICES, epoch=epoch)):
            height, width = pixels.shape[1:]
            found = dict(zip(target["labels"].tolist(), target["boxes"].tolist(), strict=True))
            assert target["boxes"].dtype == np.float32
            for channel, label in enumerate((5, 6, 7)):
                left, top, right, bottom = found.get(label, (0, 0, 0, 0))
                assert 0 <= left <= right <= width and 0 <= top <= bottom <= height
                y, x = np.mgrid[:height, :width] + 0.5
                # (a centre on a box's very edge may belong to either side; resampling twice moves edges by a pixel)
                slack = {"padded twice": 1.01, "three resamplings": 3.0}.get(name, 1e-3)
                inside = (x > left + slack) & (x < right - slack) & (y > top + slack) & (y < bottom - slack)
                outside = (x < left - slack) | (x > right + slack) | (y < top - slack) | (y > bottom + slack)
                assert (pixels[channel][inside] == 255).all()
                assert (pixels[channel][outside] == 0).all()
                some += bool(inside.any())
    assert some > 5


def test_small_boxes_are_dropped_with_their_labels() -> None:
    boxes = np.array([[0, 0, 10, 10], [0, 0, 2, 40], [30, 30, 30, 40], [45, 20, 60, 40]], np.float32)
    target = {"boxes": boxes, "labels": np.array([1, 2, 3, 4]), "area": [100, 80, 0, 300], "id": "a"}
    source = MemorySource(PAINTED[:1], [target])

    def left(min_size: float, *steps: Any) -> Any:
        follow = image.boxes(per_box=("labels", "area"), min_size=min_size)
        recipe = Recipe(source, image.decode(), steps, follow=follow)
        ((_, out),) = compile_recipe(recipe, caches_decoded=False).samples(order(source, [0]))
        return out

    assert left(0)["labels"].tolist() == [1, 2, 4]
    assert left(3)["labels"].tolist() == [1, 4]
    half = left(1.1, image.resize((20, 30)), image.center_crop((20, 20)), image.horizontal_flip(1.0))
    assert half["id"] == "a" and half["area"].tolist() == [300]
    np.testing.assert_allclose(half["boxes"], [[0, 10, 2.5, 20]])
    none = left(1, image.center_crop(4))
    assert none["boxes"].shape == (0, 4) and none["labels"].shape == (0,)
    empty = MemorySource(PAINTED[:1], [{"boxes": [], "labels": []}])
    recipe = Recipe(empty, image.decode(), [image.random_resized_crop(8)], follow=image.boxes())
    ((_, out),) = compile_recipe(recipe, caches_decoded=False).samples(order(empty, [0]))
    assert out["boxes"].shape == (0, 4)


def test_targets_without_boxes_are_bad_samples() -> None:
    odd = [{"labels": []}, 3, {"boxes": [[1, 2, 3, 4]], "labels": [1, 2]}, {"boxes": [[1, 2, 3]]}]
    source = MemorySource(PAINTED[:4], odd)
    work = order(source, range(4))
    recipe = Recipe(source, image.decode(), [image.resize((8, 8))], follow=image.boxes())
    compile_recipe(recipe, caches_decoded=False).samples(work)
    assert set(work.faults) == {0, 1, 2, 3}


def test_masks_boxes_and_parsed_targets_together() -> None:
    def parse(number: int) -> Any:
        return {"boxes": BOXES[number], "labels": np.arange(3), "mask": LABELS[number]}

    source = MemorySource(BLOBS, np.arange(len(BLOBS)))
    steps = [image.random_resized_crop(20, **NEAREST), image.horizontal_flip()]
    follow = [image.boxes(), image.mask("mask")]
    recipe = Recipe(source, image.decode(), steps, target_transform=parse, follow=follow)
    both = compile_recipe(recipe, caches_decoded=True).samples(order(source, INDICES))
    alone = compile_recipe(detected(*steps), caches_decoded=True).samples(order(source, INDICES))
    for (pixels, target), (_, boxes) in zip(both, alone, strict=True):
        np.testing.assert_array_equal(pixels[0], target["mask"])
        np.testing.assert_array_equal(target["boxes"], boxes["boxes"])


# -- in a loader ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    """Image and mask files: the red of an image is its mask."""
    root = tmp_path_factory.mktemp("scenes")
    paths = []
    for number, labels in enumerate(LABELS):
        paths.append(str(root / f"image-{number}.png"))
        cv2.imwrite(paths[-1], np.stack([labels // 2, labels // 3, labels], axis=2))
    return paths, write_masks(root)


def segments(scenes: Any, **options: Any) -> Recipe:
    steps = [image.random_resized_crop(16, **NEAREST), image.horizontal_flip()]
    options = {"follow": image.mask(), "augment": steps, **options}
    return Recipe(hr.files(scenes[0], targets=scenes[1]), image.decode(), **options)


def batches(recipe: Recipe, done: int = 0, **options: Any) -> list[Any]:
    options = {"batch_size": 4, "shuffle": True, "seed": 1, "num_workers": 0, **options}
    found, states = [], []
    with hr.DataLoader(recipe, **options) as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            for images, masks in loader:
                found.append((images.clone(), masks.clone()))
                states.append(json.loads(json.dumps(loader.state_dict())))
    if done:
        with hr.DataLoader(recipe, **options) as loader:
            loader.load_state_dict(states[done - 1])
            return [*loader, *loader]
    return found


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    "options", [{"num_workers": 2}, {"cache": "4MiB"}, {"done": 1}, {"cache": "4MiB", "share": True}], ids=str
)
def test_batches_of_masks(scenes: Any, options: Any) -> None:
    ours = batches(segments(scenes), **options)
    for images, masks in ours:
        assert masks.dtype == torch.uint8 and masks.shape[1:] == (16, 16)
        assert torch.equal(images[:, 0], masks)
    if "share" not in options:
        for mine, other in zip(ours, batches(segments(scenes))[options.get("done", 0) :], strict=True):
            assert all(map(torch.equal, mine, other))


@pytest.mark.usefixtures("place")
def test_jobs_that_share_do_not_take_images_whose_masks_they_cannot_make(scenes: Any) -> None:
    options = {"batch_size": 3, "shuffle": True, "share": True, "cache": "8MiB", "num_workers": 0}
    with (
        hr.DataLoader(segments(scenes), **options) as one,
        hr.DataLoader(segments(scenes), **options) as other,
    ):
        for _ in range(2):
            for pair in zip(one, other, strict=True):
                for images, masks in pair:
                    assert torch.equal(images[:, 0], masks)
        hits = {name: form.hits for name, form in other.stats().cache.items()}
        assert hits["decoded"] > 0 and hits["augmented"] == 0


def test_masks_are_fetched_with_their_images(scenes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not read while others are prepared, whichever entry of the target names them."""
    monkeypatch.setattr("headrace.recipes.image.annotations._read", None)
    assert all(torch.equal(images[:, 0], masks) for images, masks in batches(segments(scenes)))
    targets = [{"mask": path, "id": at} for at, path in enumerate(scenes[1])]
    named = segments((scenes[0], targets), follow=image.mask("mask"))
    for images, target in hr.DataLoader(named, batch_size=4, num_workers=0):
        assert torch.equal(images[:, 0], target["mask"])
    # (a part of an order is prepared by itself where some of its rows are decoded)
    source = MemorySource(BLOBS, scenes[1])
    work = order(source, INDICES)
    work.beside = {at: Path(path).read_bytes() for at, path in enumerate(scenes[1])}
    part = work.part(2, 5)
    program = compile_recipe(
        Recipe(source, image.decode(), FIXED["training"], follow=image.mask()), caches_decoded=False
    )
    pixels, masks = run(program, part)
    assert not part.faults
    np.testing.assert_array_equal(pixels[..., 0], masks)


def test_bad_masks_are_skipped(scenes: Any, tmp_path: Path) -> None:
    masks = [*scenes[1][:3], str(tmp_path / "none.png"), *scenes[1][4:]]
    recipe = segments((scenes[0], masks))
    with hr.DataLoader(recipe, batch_size=6, num_workers=0, on_error="skip", error_budget=1) as loader:
        ((images, found),) = loader
        assert len(images) == 5 and torch.equal(images[:, 0], found)
        assert loader.bad_samples[0].index == 3 and "none.png" in loader.bad_samples[0].reason


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_boxes(scenes: Any, workers: int) -> None:
    targets = [{"boxes": boxes, "labels": [1, 2, 3], "id": at} for at, boxes in enumerate(BOXES)]
    source = hr.files(scenes[0], targets=targets)
    square = Recipe(source, image.decode(), [image.random_resized_crop(24)], follow=image.boxes())
    with hr.DataLoader(square, batch_size=4, num_workers=workers, seed=3) as loader:
        (images, first), (_, second) = loader
        assert images.shape == (4, 3, 24, 24) and images.is_contiguous(memory_format=torch.channels_last)
        assert [target["id"] for target in first + second] == list(range(6))
        for target in first + second:
            assert target["boxes"].dtype == torch.float32 and target["boxes"].shape == (
                len(target["labels"]),
                4,
            )
        pixels, target = loader.dataset[2]
        assert pixels.shape == (3, 24, 24) and target["boxes"].shape[1] == 4 and target["id"] == 2
    steps = [image.resize(30, max_size=60), image.horizontal_flip(), image.layout(contiguous=True)]
    varied = Recipe(source, image.decode(), steps, follow=image.boxes())
    with hr.DataLoader(varied, batch_size=4, num_workers=workers, seed=3) as loader:
        (images, targets), (rest, _) = loader
        assert type(rest) is list and len(rest) == 2
        assert [tuple(pixels.shape[1:]) for pixels in images] == [(30, 45), (58, 30), (30, 30), (24, 60)]
        assert len(targets) == 4
    own = Recipe(source, image.decode(), steps, follow=image.boxes(), collate=lambda samples: len(samples))
    assert list(hr.DataLoader(own, batch_size=4, num_workers=workers)) == [4, 2]


@pytest.mark.usefixtures("place")
def test_boxes_are_the_same_wherever_images_come_from(scenes: Any) -> None:
    targets = [{"boxes": boxes, "labels": [1, 2, 3]} for boxes in BOXES]
    steps = [image.resize(40), image.random_crop(30), image.horizontal_flip()]
    recipe = Recipe(hr.files(scenes[0], targets=targets), image.decode(), steps, follow=image.boxes())

    def found(**options: Any) -> list[Any]:
        options = {"batch_size": 4, "seed": 2, "num_workers": 0, "cache": "4MiB", **options}
        with hr.DataLoader(recipe, **options) as loader:
            epochs = []
            for epoch in (0, 1, 0):  # the last is all from the cache
                loader.set_epoch(epoch)
                epochs += [[target["boxes"].clone() for target in targets] for _, targets in loader]
            return epochs

    expected = found(cache=None)
    for options in ({}, {"num_workers": 1}, {"share": True, "sampling": "uniform"}):
        for mine, other in zip(found(**options), expected, strict=True):
            assert all(map(torch.equal, mine, other))


def test_annotated_samples_are_measured() -> None:
    for recipe in (masked(*FIXED["training"]), detected(*FIXED["training"])):
        loaded = load_samples(recipe, INDICES, 1.0)
        assert (loaded.layout is None) == recipe.ragged and loaded.body is None
        for stage in ("augment", "uncached"):
            assert PreparingThread(loaded, stage, 4)() == 4
        loaded.close()


def test_forms_of_images_with_masks() -> None:
    steps = [image.resize((24, 24)), image.random_crop(20)]
    plain, with_masks = (
        Recipe(MemorySource(BLOBS, list(LABELS)), image.decode(), steps, follow=f) for f in ((), image.mask())
    )
    # Boxes and masks are in pixels of the image as it is decoded, so that is what is kept.
    assert (plain.lead, with_masks.lead) == (1, 0)
    assert with_masks.fingerprint(Form.AUGMENTED) != plain.fingerprint(Form.AUGMENTED)
    other = masked(*steps, follow=image.mask(fill=3))
    assert other.fingerprint(Form.AUGMENTED) != with_masks.fingerprint(Form.AUGMENTED)
    assert layout_of(compile_recipe(masked(), caches_decoded=True), [0]).fields[1].shape == SIZES[0]


def test_steps_on_colours_are_not_refused() -> None:
    masked(image.invert(), image.random_apply([image.color_jitter(0.4), image.equalize()], 0.5))
    masked(image.random_choice([image.invert(), image.grayscale()]))


def test_what_cannot_be_followed_is_refused() -> None:
    bare = MemorySource(BLOBS)
    refused = [
        (lambda: masked(image.rotation(20)), "may move pixels"),
        (lambda: masked(image.rand_augment()), "may move pixels"),
        (lambda: masked(image.random_apply(image.rotation(20), 0.5)), "may move pixels"),
        (lambda: masked(image.random_choice([image.invert(), image.rotation(9)])), "may move pixels"),
        (lambda: masked(image.random_crop(8, padding=2, padding_mode="reflect")), "may move pixels"),
        (lambda: masked(lambda pixels: pixels), "may move pixels"),
        (lambda: masked(hr.views([image.resize(8)])), "may move pixels"),
        (lambda: masked(follow=[image.mask(), image.boxes()]), "entry of the target of its own"),
        (lambda: masked(follow=[image.mask("a"), image.mask("a")]), "entry of the target of its own"),
        (lambda: masked(follow=["mask"]), "expected image.mask"),
        (lambda: Recipe(bare, image.decode(), follow=image.mask()), "has no targets"),
        (lambda: Recipe(MemorySource(BLOBS, LABELS), np.array, follow=image.mask()), "needs images"),
        (lambda: masked(image.resize((8, 8)), batch=image.mixup(3)), "leave one out"),
        (lambda: detected(image.to_float("bfloat16")), "no bfloat16"),
        (lambda: image.mask(dtype="float32"), "mask\\(dtype"),
        (lambda: image.mask(fill=256), "does not fit uint8"),
        (lambda: image.boxes(""), "names of entries"),
        (lambda: image.boxes(min_size=-1), "none or more"),
    ]
    for make, reason in refused:
        with pytest.raises(OptionError, match=reason):
            make()
