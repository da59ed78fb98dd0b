"""Steps that a device does: the same pixels as where workers do them, but for rounding; also the same random ones.

The device is a GPU where there is one. torch's own operations, which stand in where there is no kernel, run here too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import headrace as hr
from headrace.loader import choose_session, finishing_kernel, painting_kernel
from headrace.loader.device import DeviceFeed
from headrace.loader.finishing import divide, rows_kept
from headrace.recipes.image.rows import Layout, Normalise, RandomErasing
from tests.loader import pictures
from tests.loader.device_jobs import Here

image = hr.image
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TAILS: dict[str, list[Any]] = {
    "to float": [image.to_float()],
    "bfloat16": [image.to_float("bfloat16")],
    "normalised": [image.normalise(MEAN, STD)],
    "float16, plane by plane": [image.normalise(MEAN, STD, dtype="float16"), image.layout(contiguous=True)],
    "pixel by pixel": [image.normalise(MEAN, STD), image.layout("NHWC")],
    "erased": [image.normalise(MEAN, STD), image.random_erasing(0.7)],
    "erased, by value": [image.to_float(), image.random_erasing(0.9, value=(0.1, 0.5, 7.0), count=(1, 3))],
    "erased, by colour": [image.to_float("bfloat16"), image.random_erasing(1.0, value="color", count=2)],
    "erased, by noise": [image.normalise(MEAN, STD), image.random_erasing(1.0, value="random", count=(2, 3))],
    "erased before": [image.random_erasing(0.8, value=(1.7, 300, -4)), image.normalise(MEAN, STD)],
    "erased before, by noise": [
        image.random_erasing(1.0, value="random"),
        image.normalise(MEAN, STD, dtype="float16"),
    ],
    "erased twice": [
        image.random_erasing(1.0, value="color"),
        image.to_float(),
        image.layout(contiguous=True),
        image.random_erasing(1.0, value="random"),
    ],
}


@pytest.fixture(params=["here", "kernel", "operations"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is given as ``device=``. "here": torch's operations on the CPU; else on a GPU, also without the kernel."""
    if request.param == "here":
        monkeypatch.setattr(choose_session, "find_device", lambda name: name and torch.device("cpu"))
        monkeypatch.setattr(choose_session, "DeviceFeed", Here)
    elif not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if request.param == "operations":
        monkeypatch.setattr(finishing_kernel, "usable", lambda pixels: False)
        monkeypatch.setattr(painting_kernel, "usable", lambda pixels: False)
    return "cuda"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return pictures.photos(tmp_path_factory.mktemp("photos"))[0]


def batches(recipe: hr.Recipe, device: Any, **more: Any) -> list[Any]:
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "seed": 11, "num_workers": 1, **more}
    with hr.DataLoader(recipe, device=device, **options) as loader:
        return [[leaf.cpu().clone() for leaf in pictures.flat(batch)] for _ in range(2) for batch in loader]


def alike(ours: list[Any], theirs: list[Any]) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            near = {torch.bfloat16: 1 / 128, torch.float16: 1 / 1024, torch.float32: 1e-6}.get(a.dtype, 0)
            assert torch.allclose(a.double(), b.double(), rtol=near, atol=near / 8)


def recipe(photos: list[str], tail: list[Any], **more: Any) -> hr.Recipe:
    steps = [image.random_resized_crop(40), image.horizontal_flip(), image.gaussian_blur(3), *tail]
    return hr.Recipe(
        hr.files(photos, range(80)), decode=image.decode(more.pop("mode", "RGB")), augment=steps, **more
    )


@pytest.mark.parametrize("tail", TAILS)
def test_pixels_are_those_of_workers(photos: list[str], device: Any, tail: str) -> None:
    made = recipe(photos, TAILS[tail])
    rest, steps = divide(made)
    assert steps is not None and len(rest.steps) == 3
    assert not any(isinstance(step, Normalise | Layout | RandomErasing) for step in rest.steps)
    alike(batches(made, device), batches(made, None))
    with hr.DataLoader(made, batch_size=16, num_workers=1, device=device) as loader:
        next(iter(loader))
        there = loader.stats().device
        assert there is not None and there.finished == tuple(str(step) for step in TAILS[tail])
        assert f"{there.finished[-1]} done there" in str(loader.stats())


COLOURS: dict[str, list[Any]] = {
    "brightness": [image.color_jitter(0.5)],
    "contrast": [image.color_jitter(contrast=(0.2, 1.8))],
    "saturation": [image.color_jitter(saturation=0.9)],
    "all but hue": [image.color_jitter(0.4, 0.4, 0.4)],
    "twice, and grey": [image.color_jitter(0.4, 0.4), image.grayscale(0.5), image.color_jitter(0.2, 0.8)],
    "hue": [image.color_jitter(hue=0.4)],
    "all": [image.color_jitter(0.4, 0.4, 0.4, 0.1)],
}


@pytest.mark.parametrize("colours", COLOURS)
def test_colours_are_those_of_workers(photos: list[str], device: Any, colours: str) -> None:
    steps = [image.random_resized_crop(40), *COLOURS[colours], image.to_float(), image.random_erasing(0.5)]
    made = hr.Recipe(hr.files(photos, range(80)), decode=image.decode(), augment=steps)
    rest, tail = divide(made)
    assert tail is not None and len(rest.steps) == 1 and len(tail.painting) == len(COLOURS[colours])
    # (OpenCV rounds a few values of its own way, and cuts off some of a turned hue; what follows makes more of it)
    known = {"saturation": 1, "all but hue": 4, "hue": 2, "all": 8}
    levels = known.get(colours, 2 if torch.cuda.is_available() else 0)
    for mine, other in zip(batches(made, device), batches(made, None), strict=True):
        apart = (mine[0] - other[0]).abs() * 255
        assert float(apart.max()) <= levels + 1e-3 and float(apart.mean()) <= levels / 4 + 1e-3
        assert (mine[1] == other[1]).all()


def test_colours_that_a_worker_changes(photos: list[str]) -> None:
    jitter, erase, float_ = image.color_jitter(0.4), image.random_erasing(), image.to_float()
    for steps, left in (
        ([jitter, image.gaussian_blur(3), float_], 2),
        ([jitter, erase, jitter, float_], 2),
        ([float_, erase], 0),
        ([jitter], 1),
    ):
        made = hr.Recipe(hr.files(photos), decode=image.decode(), augment=[image.resize((40, 40)), *steps])
        assert len(divide(made)[0].steps) == 1 + left
    made = hr.Recipe(hr.files(photos), decode=image.decode("L"), augment=[jitter, float_])
    assert len(divide(made)[0].steps) == 1


def test_images_of_one_channel(photos: list[str], device: Any) -> None:
    made = recipe(photos, [image.to_float(), image.random_erasing(1.0, value="random")], mode="L")
    alike(batches(made, device), batches(made, None))


@pytest.mark.parametrize("more", [{"batch_size": None}, {"num_workers": 0}, {"cache": "8MiB"}], ids=str)
@pytest.mark.slow
def test_however_they_are_loaded(photos: list[str], device: Any, more: dict[str, Any]) -> None:
    made = recipe(photos, TAILS["erased, by noise"])
    alike(batches(made, device, **more), batches(made, None, **more))


@pytest.mark.parametrize("rule", ["skip", "substitute"])
def test_bad_samples(photos: list[str], device: Any, rule: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    some = [str(bad) if number in (3, 4, 40) else path for number, path in enumerate(photos)]
    made = recipe(some, TAILS["erased, by noise"])
    options: dict[str, Any] = {"on_error": rule, "error_budget": 10}
    alike(batches(made, device, **options), batches(made, None, **options))


def test_samples_without_targets(photos: list[str], device: Any) -> None:
    made = hr.Recipe(
        hr.files(photos), decode=image.decode(), augment=[image.resize((32, 32)), image.to_float()]
    )
    alike(batches(made, device), batches(made, None))


@pytest.mark.parametrize("kind", [pictures.views, pictures.mixed, pictures.with_masks, pictures.with_boxes])
def test_what_cannot_be_left_to_a_device(kind: Any, tmp_path: Path, device: Any) -> None:
    made = hr.Recipe(**kind(*pictures.photos(tmp_path)), decode=image.decode())
    assert divide(made)[1] is None
    if device == "cuda" and choose_session.DeviceFeed is DeviceFeed:
        alike(batches(made, device), batches(made, None))


def test_what_would_not_pay(photos: list[str]) -> None:
    for tail in ([], [image.layout(contiguous=True)], [image.random_erasing()]):
        assert divide(recipe(photos, tail))[1] is None
    user = recipe(photos, [image.to_float(), lambda row: row])
    assert divide(user)[1] is None


def test_which_rows_stand_in_a_batch() -> None:
    assert rows_kept("skip", [], 4) is None
    assert rows_kept("skip", [1, 3], 5).tolist() == [0, 2, 4]  # type: ignore[union-attr]
    assert rows_kept("substitute", [1, 3], 5).tolist() == [0, 0, 2, 2, 4]  # type: ignore[union-attr]
