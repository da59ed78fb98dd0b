"""Torchvision's transforms as headrace's steps, on stand-ins that do with Pillow and torch what theirs do.

(Theirs themselves are tried in test_torchvision.py, where torchvision is installed.)
"""

from __future__ import annotations

import io
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFile, ImageOps

import headrace as hr
from headrace.core.forms import Form
from headrace.recipes import Recipe
from headrace.recipes.calls import Call
from headrace.recipes.datasets import Recognised, recognise
from headrace.recipes.image.ops import Decode
from headrace.sources import files
from tests.recipes.helpers import picture, rows
from tests.recipes.test_datasets import TRANSFORMS, Compose, ImageFolder, theirs

V2 = "torchvision.transforms.v2._transform"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Mode(Enum):
    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    HAMMING = "hamming"


PILLOW = {Mode.NEAREST: 0, Mode.BILINEAR: 2, Mode.BICUBIC: 3, Mode.HAMMING: 5}


@theirs(TRANSFORMS)
class Resize:
    def __init__(self, size: Any, interpolation: Mode = Mode.BILINEAR, max_size: Any = None) -> None:
        self.size, self.interpolation, self.max_size, self.antialias = size, interpolation, max_size, True

    def __call__(self, image: Any) -> Any:
        if isinstance(self.size, int) or len(self.size) == 1:
            side = self.size if isinstance(self.size, int) else self.size[0]
            width, height = image.size
            short, long = sorted((width, height))
            other = int(side * long / short)
            size = (side, other) if width <= height else (other, side)
        else:
            size = (self.size[1], self.size[0])
        wide = image.resize((size[0], image.height), PILLOW[self.interpolation])
        return wide.resize(size, PILLOW[self.interpolation])


@theirs(TRANSFORMS)
class CenterCrop:
    def __init__(self, size: int) -> None:
        self.size = (size, size)

    def __call__(self, image: Any) -> Any:
        left, top = round((image.width - self.size[1]) / 2), round((image.height - self.size[0]) / 2)
        return image.crop((left, top, left + self.size[1], top + self.size[0]))


@theirs(TRANSFORMS)
class RandomResizedCrop:
    """Of images that fit as a whole."""

    def __init__(self, size: int, scale: Any = (0.08, 1.0), ratio: Any = (3 / 4, 4 / 3)) -> None:
        self.size, self.scale, self.ratio = (size, size), scale, ratio
        self.interpolation, self.antialias = Mode.BILINEAR, True

    def __call__(self, image: Any) -> Any:
        assert self.scale[0] == 1
        return Resize(self.size)(image)


@theirs(TRANSFORMS)
class RandomHorizontalFlip:
    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def __call__(self, image: Any) -> Any:
        assert self.p == 1
        if isinstance(image, torch.Tensor):
            return image.flip(-1)
        return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


@theirs(TRANSFORMS)
class RandomCrop:
    def __init__(self, size: int, padding: Any = None, fill: Any = 0, padding_mode: str = "constant") -> None:
        self.size, self.padding, self.pad_if_needed = (size, size), padding, False
        self.fill, self.padding_mode = fill, padding_mode


@theirs(TRANSFORMS)
class Grayscale:
    def __init__(self, channels: int) -> None:
        self.num_output_channels = channels

    def __call__(self, image: Any) -> Any:
        grey = image.convert("L")
        return Image.merge("RGB", (grey,) * 3) if self.num_output_channels == 3 else grey


@theirs(TRANSFORMS)
class ColorJitter:
    def __init__(self, **bounds: Any) -> None:
        for name in ("brightness", "contrast", "saturation", "hue"):
            setattr(self, name, bounds.get(name))


@theirs(TRANSFORMS)
class GaussianBlur:
    def __init__(self, kernel_size: Any, sigma: Any) -> None:
        self.kernel_size, self.sigma = kernel_size, sigma


@theirs(TRANSFORMS)
class RandomErasing:
    def __init__(self, p: float, value: Any) -> None:
        self.p, self.value, self.scale, self.ratio = p, value, (0.02, 0.33), (0.3, 3.3)


@theirs(TRANSFORMS)
class ElasticTransform:
    def __call__(self, image: Any) -> Any:
        return image


@theirs(TRANSFORMS)
class RandomRotation:
    def __init__(
        self, degrees: Any, interpolation: Any = Mode.NEAREST, expand: bool = False, center: Any = None
    ):
        self.degrees, self.interpolation, self.expand, self.center = degrees, interpolation, expand, center
        self.fill = 5

    def __call__(self, image: Any) -> Any:
        way = PILLOW.get(self.interpolation, self.interpolation)
        return image.rotate(self.degrees[0], way, self.expand, self.center, fillcolor=(5, 5, 5))


@theirs(TRANSFORMS)
class RandomAffine:
    def __init__(self, degrees: Any, **options: Any) -> None:
        self.degrees, self.fill, self.interpolation = degrees, 0, Mode.NEAREST
        for name in ("translate", "scale", "shear", "center"):
            setattr(self, name, options.get(name))


@theirs(TRANSFORMS)
class RandomPerspective:
    def __init__(self, distortion_scale: float, p: float, interpolation: Any) -> None:
        self.distortion_scale, self.p, self.interpolation, self.fill = (
            distortion_scale,
            p,
            interpolation,
            (1, 2, 3),
        )


@theirs(TRANSFORMS)
class Pad:
    def __init__(self, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> None:
        self.padding, self.fill, self.padding_mode = padding, fill, padding_mode

    def __call__(self, image: Any) -> Any:
        return ImageOps.expand(image, self.padding, (self.fill,) * 3)


@theirs(TRANSFORMS)
class RandomApply:
    def __init__(self, transforms: Any, p: float) -> None:
        self.transforms, self.p = transforms, p

    def __call__(self, image: Any) -> Any:
        assert self.p in (0, 1)
        return Compose(self.transforms)(image) if self.p else image


@theirs(TRANSFORMS)
class RandomChoice:
    def __init__(self, transforms: Any, p: Any = None) -> None:
        self.transforms, self.p = transforms, p

    def __call__(self, image: Any) -> Any:
        assert len(self.transforms) == 1
        return self.transforms[0](image)


def operation(name: str, function: Any, *names: str) -> Any:
    """A stand-in for one of the transforms that are an operation of Pillow's."""

    def init(self: Any, *values: Any, p: float = 0.5) -> None:
        self.p = p
        for one, value in zip(names, values, strict=True):
            setattr(self, one, value)

    def call(self: Any, image: Any) -> Any:
        assert self.p == 1
        return function(image, *(getattr(self, one) for one in names))

    return theirs(TRANSFORMS)(type(name, (), {"__init__": init, "__call__": call}))


RandomInvert = operation("RandomInvert", ImageOps.invert)
RandomEqualize = operation("RandomEqualize", ImageOps.equalize)
RandomAutocontrast = operation("RandomAutocontrast", ImageOps.autocontrast)
RandomPosterize = operation("RandomPosterize", ImageOps.posterize, "bits")
RandomSolarize = operation("RandomSolarize", ImageOps.solarize, "threshold")
RandomAdjustSharpness = operation(
    "RandomAdjustSharpness",
    lambda image, factor: ImageEnhance.Sharpness(image).enhance(factor),
    "sharpness_factor",
)


@theirs(TRANSFORMS)
class ToTensor:
    def __call__(self, image: Any) -> Any:
        pixels = torch.from_numpy(np.array(image))
        return pixels.permute(2, 0, 1).contiguous().float().div(255)


@theirs(V2)
class ToImage:
    def __call__(self, image: Any) -> Any:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


@theirs(V2)
class ToDtype:
    def __init__(self, dtype: Any, scale: bool = False) -> None:
        self.dtype, self.scale = dtype, scale

    def __call__(self, image: Any) -> Any:
        return image.to(self.dtype) / (255 if self.scale else 1)


@theirs(TRANSFORMS)
class Normalize:
    def __init__(self, mean: Any, std: Any) -> None:
        self.mean, self.std = mean, std

    def __call__(self, image: Any) -> Any:
        return (image - torch.tensor(self.mean)[:, None, None]) / torch.tensor(self.std)[:, None, None]


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@pytest.fixture
def samples(tmp_path: Path) -> list[tuple[str, int]]:
    """Of every kind that folders hold."""
    photo = Image.fromarray(picture(90, 120, 1))
    turned = Image.Exif()
    turned[0x0112] = 6
    alpha = photo.convert("RGBA")
    alpha.putalpha(Image.fromarray(np.arange(90 * 120, dtype=np.uint32).astype(np.uint8).reshape(90, 120)))
    kinds = {
        "0.jpg": encoded(photo, "JPEG", quality=90),
        "1.jpg": encoded(photo.convert("L"), "JPEG"),
        "2.jpg": encoded(photo, "JPEG", exif=turned),
        "3.jpg": encoded(photo.convert("CMYK"), "JPEG"),
        "4.png": encoded(alpha, "PNG"),
        "5.png": encoded(photo.convert("P"), "PNG"),
        "6.png": encoded(photo.convert("1"), "PNG"),
        "7.webp": encoded(photo, "WEBP", lossless=True),
        "8.jpg": encoded(photo.resize((60, 200)), "JPEG", progressive=True),
    }
    for name, data in kinds.items():
        (tmp_path / name).write_bytes(data)
    return [(str(tmp_path / name), int(name[0]) % 3) for name in sorted(kinds)]


def found(samples: Any, *transforms: Any) -> Recognised:
    recognised = recognise(ImageFolder(samples, transform=Compose(list(transforms))), files)
    assert recognised is not None
    return recognised


def calls(recipe: Recipe) -> list[str]:
    return [str(step) for step in recipe.steps if isinstance(step, Call)]


PIPELINES = {
    "evaluation": [Resize(72, Mode.BICUBIC), CenterCrop(64), ToTensor(), Normalize(MEAN, STD)],
    "to one size": [Resize([40, 56]), ToTensor()],
    "nearest": [Resize([40, 56], Mode.NEAREST), ToTensor()],
    "one number in a list": [Resize([33]), CenterCrop(30), ToTensor()],
    "whole crop": [
        CenterCrop(60),
        RandomResizedCrop(48, (1, 1), (1, 1)),
        RandomHorizontalFlip(1),
        ToTensor(),
        Normalize(MEAN, STD),
    ],
    "flip after floats": [Resize([32, 32]), ToTensor(), RandomHorizontalFlip(1), Normalize(MEAN, STD)],
    "flip after normalisation": [Resize([32, 32]), ToTensor(), Normalize(MEAN, STD), RandomHorizontalFlip(1)],
    "grey": [Grayscale(3), Resize([32, 32]), ToTensor()],
    "bytes": [Resize([32, 32]), ToImage()],
    "v2": [
        CenterCrop(48),
        ToImage(),
        RandomHorizontalFlip(1),
        ToDtype(torch.float32, scale=True),
        Normalize(MEAN, STD),
    ],
    "half": [Resize([32, 32]), ToImage(), ToDtype(torch.float16, scale=True)],
    "rotation": [Resize([32, 40]), RandomRotation((30, 30), 2), ToTensor()],
    "rotation, expanded": [
        Resize([32, 40]),
        RandomRotation([30, 30], expand=True),
        CenterCrop(36),
        ToTensor(),
    ],
    "pad": [Resize([32, 40]), Pad((2, 5), 9), ToTensor()],
    "applied": [
        CenterCrop(40),
        RandomApply([Compose([RandomInvert(p=1), RandomRotation((9, 9), center=(3, 4))])], 1),
        RandomApply([RandomInvert(p=1)], 0),
        RandomChoice([RandomSolarize(99, p=1)]),
        RandomPosterize(3, p=1),
        ToTensor(),
    ],
    "operations": [
        CenterCrop(40),
        RandomEqualize(p=1),
        RandomAutocontrast(p=1),
        RandomAdjustSharpness(1.5, p=1),
        ToTensor(),
    ],
    "tensors": [CenterCrop(40), ToImage(), RandomApply([RandomHorizontalFlip(1)], 1)],
}


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("name", PIPELINES)
def test_what_comes_out_is_what_theirs_gives(samples: Any, name: str, caches: bool) -> None:
    transforms = PIPELINES[name]
    dataset = ImageFolder(samples, transform=Compose(transforms))
    recipe, notes = found(samples, *transforms)
    assert calls(recipe) == []
    assert [note.step for note in notes] == [type(step).__name__ for step in transforms]
    assert not any(note.why for note in notes)
    scale = (
        1
        if name in ("bytes", "tensors")
        else 255 * (min(STD) if "Normalize" in str([n.step for n in notes]) else 1)
    )
    for index in range(len(samples)):
        want, target = dataset[index]
        value, label = rows(recipe, [index], caches=caches)
        assert label[0] == target
        assert value.shape[1:] == want.shape
        assert str(value.dtype) == str(want.dtype).removeprefix("torch.")
        apart = np.abs(value[0].astype(np.float64) - want.double().numpy()) * scale
        # resampling differs by a level at most, where it rounds twice by two; grey values by one
        assert apart.max() < 2.6, index
        assert apart.mean() < 0.25, index


def test_from_the_first_that_is_not_known_on_it_is_their_code(samples: Any) -> None:
    recipe, notes = found(samples, Resize([32, 32]), ElasticTransform(), ToTensor())
    assert calls(recipe) == ["to_pil", "ElasticTransform", "ToTensor"]
    assert [str(note) for note in notes] == [
        "Resize",
        "ElasticTransform: headrace has no such step",
        "ToTensor: it follows one that is not known",
    ]
    (value, _) = rows_of_samples(recipe, 0)
    assert isinstance(value, torch.Tensor | np.ndarray)
    assert tuple(value.shape) == (3, 32, 32)


def test_code_after_floats_gets_tensors(samples: Any) -> None:
    seen: list[Any] = []

    def look(value: Any) -> Any:
        seen.append(value)
        return value

    recipe, notes = found(samples, Resize([16, 16]), ToTensor(), Normalize(MEAN, STD), look)
    assert calls(recipe) == ["to_tensor", look.__qualname__]
    assert str(notes[-1]) == "function: it is not torchvision's own, nor timm's"
    rows_of_samples(recipe, 0)
    assert isinstance(seen[0], torch.Tensor)
    assert (seen[0].dtype, seen[0].shape, seen[0].is_contiguous()) == (torch.float32, (3, 16, 16), True)
    want = ImageFolder(samples, transform=Compose([Resize([16, 16]), ToTensor(), Normalize(MEAN, STD)]))[0][0]
    assert (seen[0] - want).abs().max() < 0.05


def rows_of_samples(recipe: Recipe, index: int) -> Any:
    from headrace.recipes import compile_recipe
    from tests.recipes.helpers import order

    work = order(recipe.source, [index])
    (sample,) = compile_recipe(recipe, caches_decoded=False).samples(work)
    assert not work.faults, work.faults
    return sample


@pytest.mark.parametrize(
    ("transforms", "why"),
    [
        ([Resize([8, 8], Mode.HAMMING)], "interpolation hamming"),
        ([Resize(None)], "size=None"),
        ([Grayscale(1)], "one channel comes out"),
        ([ToTensor(), ColorJitter(brightness=(0.5, 1.5))], "it follows a conversion to floats"),
        ([ToTensor(), Normalize(MEAN, STD), Resize([8, 8])], "it follows a normalisation"),
        ([ToTensor(), Normalize(MEAN, STD), Normalize(MEAN, STD)], "no floats from 0 to 1"),
        ([ToImage(), ToDtype(torch.float32)], "scale=False"),
        ([ToImage(), ToDtype(torch.float64, True)], "to torch.float64 there"),
        ([ToDtype(torch.float32, True)], "given an image of Pillow's"),
        ([ToTensor(), ToTensor()], "it is a tensor already"),
        ([RandomErasing(1, 0)], "it is given no floats"),
        ([Normalize(MEAN, STD)], "no floats"),
        ([ToTensor(), Normalize(MEAN[:2], STD)], "2 means for three channels"),
        ([RandomCrop(8, fill=0.5)], "fill 0.5"),
        ([RandomCrop(8, padding_mode="wrap")], "padding_mode"),
        ([GaussianBlur((4, 4), (1.0, 2.0))], "odd"),
        ([ToImage(), RandomRotation((1, 2))], "not Pillow's"),
        ([ToImage(), RandomAffine([1, 2])], "not Pillow's"),
        ([ToImage(), RandomPerspective(0.5, 0.5, Mode.BILINEAR)], "not Pillow's"),
        ([RandomRotation((1, 2), Mode.HAMMING)], "nearest, bilinear or bicubic"),
        ([ToTensor(), RandomInvert()], "it follows a conversion to floats"),
        ([ToTensor(), Pad(1, 3)], "fill 3"),
        ([RandomApply([ElasticTransform()], 0.5)], "ElasticTransform in it: headrace has no such step"),
        ([RandomApply([CenterCrop(8)], 0.5)], "center_crop in it moves pixels"),
        ([RandomApply([RandomInvert(), RandomHorizontalFlip()], 0.5)], "horizontal_flip in it moves pixels"),
        ([RandomApply([ToTensor()], 0.5)], "ToTensor in it: no step on pixels"),
        ([RandomApply([RandomRotation((1, 2), expand=True)], 0.5)], "changes the size"),
        ([RandomChoice([RandomInvert(), Resize(8)])], "resize in it moves pixels"),
        ([RandomChoice([RandomInvert()], [1, 2])], "a weight for each"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_would_mean_something_else_stays_theirs(samples: Any, transforms: Any, why: str) -> None:
    recipe, notes = found(samples, *transforms)
    assert why in notes[len(transforms) - 1].why
    assert calls(recipe)[1:] == [type(transforms[-1]).__name__]


def test_random_ones_become_ours(samples: Any) -> None:
    jitter = {"brightness": (0.6, 1.4), "hue": (-0.1, 0.1)}
    recipe, _ = found(
        samples,
        RandomResizedCrop(24, (0.2, 0.9), (0.5, 2.0)),
        RandomCrop(20, padding=[2, 1], fill=(1, 2, 3)),
        RandomHorizontalFlip(0.25),
        ColorJitter(**jitter),
        GaussianBlur([5, 3], [0.1, 2.0]),
        RandomRotation([-5.0, 20.0], Mode.BILINEAR),
        RandomAffine([-5.0, 5.0]),
        RandomAffine(
            [1.0, 2.0], translate=[0.1, 0.2], scale=(0.5, 2), shear=[1.0, 2.0, 3.0, 4.0], center=[3, 4]
        ),
        RandomPerspective(0.3, 0.4, Mode.BILINEAR),
        RandomApply([ColorJitter(**jitter), RandomInvert(p=0.25)], 0.8),
        RandomApply([RandomHorizontalFlip(0.5)], 0.5),
        RandomChoice([RandomSolarize(7), Compose([RandomEqualize(), RandomAutocontrast()])], [1, 3]),
        ToTensor(),
        Normalize(MEAN, STD),
        RandomErasing(0.4, "random"),
    )
    image = hr.image
    assert list(recipe.steps) == [
        image.random_resized_crop(24, scale=(0.2, 0.9), ratio=(0.5, 2.0), antialias=True),
        image.random_crop(20, padding=(2, 1), fill=(1, 2, 3)),
        image.horizontal_flip(0.25),
        image.color_jitter(**jitter),
        image.gaussian_blur((3, 5), sigma=(0.1, 2.0)),
        image.rotation((-5, 20), interpolation="bilinear", fill=5),
        image.affine(5),
        image.affine((1, 2), translate=(0.1, 0.2), scale=(0.5, 2), shear=(1, 2, 3, 4), center=(3, 4)),
        image.perspective(0.3, 0.4, fill=(1, 2, 3)),
        image.random_apply([image.color_jitter(**jitter), image.invert(0.25)], 0.8),
        image.horizontal_flip(0.25),
        image.random_choice([image.solarize(7), [image.equalize(), image.autocontrast()]], [1, 3]),
        image.normalise(MEAN, STD),
        image.layout("NCHW", contiguous=True),
        image.random_erasing(0.4, value="random"),
    ]


def test_a_class_of_the_users_own_with_a_known_name_is_not_known(samples: Any) -> None:
    class Resize(CenterCrop):
        pass

    recipe, notes = found(samples, Resize(8))
    assert notes[0].why == "it is not torchvision's own, nor timm's"
    assert calls(recipe)[1:] == [Resize.__qualname__]


def test_equal_pipelines_share(samples: Any) -> None:
    def prints(*transforms: Any) -> list[str]:
        recipe = found(samples, *transforms).recipe
        return [recipe.fingerprint(form) for form in (Form.DECODED, Form.AUGMENTED)]

    first = prints(Resize(8), RandomHorizontalFlip(), ToTensor())
    assert prints(Resize(8), RandomHorizontalFlip(), ToTensor()) == first
    assert prints(Resize(8), ToTensor())[0] == first[0]
    assert prints(Resize(9), ToTensor())[0] != first[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_in_a_loader(samples: Any, workers: int) -> None:
    transforms = PIPELINES["evaluation"]
    dataset = ImageFolder(samples, transform=Compose(transforms))
    want = torch.utils.data.DataLoader(dataset, batch_size=4)
    with hr.DataLoader(dataset, batch_size=4, num_workers=workers) as loader:
        assert loader.dataset is dataset
        for (images, labels), (theirs_images, theirs_labels) in zip(loader, want, strict=True):
            assert images.is_contiguous()
            assert images.dtype == theirs_images.dtype
            assert (images - theirs_images).abs().max() < 3 / 255 / 0.22
            assert labels.tolist() == theirs_labels.tolist()
        stats = loader.stats()
        assert stats.translated == ("Resize", "CenterCrop", "ToTensor", "Normalize")
        assert stats.untranslated == ()
        assert "native      decoding, Resize, CenterCrop, ToTensor, Normalize" in str(stats)


def test_native_may_be_turned_off(samples: Any) -> None:
    dataset = ImageFolder(samples, transform=Compose([Resize([8, 8]), ToTensor()]))
    with hr.DataLoader(dataset, batch_size=3, num_workers=1, native=False) as loader:
        for (images, _), (theirs_images, _) in zip(
            loader, torch.utils.data.DataLoader(dataset, batch_size=3), strict=True
        ):
            assert torch.equal(images, theirs_images)
        assert loader.stats().untranslated == ("Resize: native=False", "ToTensor: native=False")
    with pytest.raises(hr.OptionError, match="native=3; write True or False"):
        hr.DataLoader(dataset, num_workers=1, native=3)


def test_what_pillow_was_told_counts(samples: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs set these for files that they know."""
    path = Path(samples[0][0])
    whole = path.read_bytes()
    assert isinstance(found(samples).recipe.decoder, Decode)
    assert found(samples).recipe.decoder.max_pixels == 2 * Image.MAX_IMAGE_PIXELS
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert found(samples).recipe.decoder.max_pixels > 1 << 31
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    path.write_bytes(whole[: len(whole) // 2])
    dataset = ImageFolder(samples, transform=Compose([Resize([8, 8]), ToTensor()]))
    with hr.DataLoader(dataset, batch_size=3, num_workers=1) as loader:
        (first, _), *_ = loader
        assert torch.equal(first[0], dataset[0][0])
        assert loader.stats().untranslated[0] == "Resize: ImageFile.LOAD_TRUNCATED_IMAGES is set"
