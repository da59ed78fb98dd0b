"""Steps of every kind that can be written down, drawn with any options that their functions take."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from headrace import fields, image, synthetic, views
from headrace.recipes import deterministic
from headrace.recipes.image import augment, truncating
from headrace.recipes.image.crops import Middle
from headrace.recipes.image.geometry import Fit
from headrace.recipes.image.policies import IMAGENET, RAND
from headrace.recipes.pil_decoding import pil_decode
from headrace.recipes.values import to_pil


def shout(value: Any) -> Any:
    """A step of a user's own, in a module."""
    return value


side = st.integers(1, 64)
size = st.one_of(side, st.tuples(side, side))
chance = st.floats(0, 1)
way = st.sampled_from(["nearest", "bilinear", "bicubic"])
byte = st.integers(0, 255)
fill = st.one_of(byte, st.tuples(byte), st.tuples(byte, byte, byte))
flag = st.booleans()
padding = st.one_of(
    st.integers(0, 9),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.tuples(*[st.integers(0, 9)] * 4),
)
mode = st.sampled_from(["reflect", "edge", "symmetric"])


def pair(low: float, high: float) -> st.SearchStrategy[tuple[float, float]]:
    return st.tuples(st.floats(low, high), st.floats(low, high)).map(lambda two: (min(two), max(two)))


def degrees() -> Any:
    return st.one_of(st.floats(0, 180), st.integers(0, 180), pair(-180, 180))


def place() -> Any:
    return st.one_of(st.none(), st.tuples(st.integers(0, 9), st.floats(0, 9)))


def resampling() -> Any:
    """Interpolation and antialias that go together."""
    plain = st.tuples(st.sampled_from(["nearest", "bilinear", "area", "cubic", "lanczos"]), st.just(False))
    return st.one_of(plain, st.tuples(st.sampled_from(["bilinear", "cubic", "lanczos"]), st.just(True)))


@st.composite
def resizes(draw: Any, make: Any) -> Any:
    interpolation, antialias = draw(resampling())
    return make(draw, interpolation=interpolation, antialias=antialias, shrink_on_load=draw(flag))


def _resize(draw: Any, **options: Any) -> Any:
    shape = draw(size)
    most = draw(st.one_of(st.none(), st.integers(65, 99))) if isinstance(shape, int) else None
    return image.resize(shape, max_size=most, **options)


def _random_resized_crop(draw: Any, interpolation: str, **options: Any) -> Any:
    ways = interpolation if draw(flag) else [interpolation, "bilinear"]
    scale, ratio = draw(pair(0, 1)), draw(pair(0.1, 9))
    return image.random_resized_crop(draw(size), scale=scale, ratio=ratio, interpolation=ways, **options)


def _shear() -> Any:
    return st.one_of(
        st.none(),
        st.floats(0, 40),
        pair(-40, 40),
        st.tuples(pair(-40, 40), pair(-40, 40)).map(lambda two: (*two[0], *two[1])),
    )


policy = st.one_of(
    st.just(IMAGENET[:3]),
    st.lists(
        st.tuples(*[st.tuples(st.sampled_from(RAND), chance, st.integers(0, 9))] * 2), min_size=1, max_size=3
    ),
)
operation = st.builds(
    augment.Augmentation,
    name=st.sampled_from(sorted(augment.OPERATIONS)),
    p=chance,
    magnitude=st.floats(0, 10),
    spread=st.one_of(st.floats(0, 2), st.just(math.inf)),
    most=st.floats(0, 10),
    translate=st.floats(0, 100),
    fill=st.one_of(st.tuples(byte), st.tuples(byte, byte, byte)),
    ways=st.one_of(st.tuples(way), st.tuples(way, way)),
)
operations = st.lists(operation, min_size=1, max_size=3).map(tuple)
factor = st.one_of(st.floats(0, 1), st.integers(0, 1), pair(0, 3))
color_jitter = st.builds(
    image.color_jitter, factor, factor, factor, st.one_of(st.floats(0, 0.5), pair(-0.5, 0.5))
)
pixels = st.one_of(
    color_jitter,
    st.builds(image.grayscale, chance),
    st.builds(image.invert, chance),
    st.builds(image.solarize, st.one_of(byte, st.floats(0, 255)), chance),
)
nested = st.builds(image.random_apply, st.one_of(pixels, st.lists(pixels, max_size=3)), chance)
chosen = st.lists(st.one_of(pixels, nested, st.lists(pixels, max_size=2)), min_size=1, max_size=3)
mixing = (st.just(5), st.floats(0.1, 4))
mixups = st.builds(lambda n, a, p: image.mixup(n, alpha=a, p=p), *mixing, chance)
cutmixes = st.builds(lambda n, a, p: image.cutmix(n, alpha=a, p=p), *mixing, chance)
erased = st.one_of(
    st.sampled_from(["random", "color", 0]), st.floats(-3, 255), st.lists(st.floats(-3, 3), min_size=1)
)

STEPS: dict[str, st.SearchStrategy[Any]] = {
    "call": st.sampled_from([deterministic(shout), deterministic(to_pil), deterministic(math.sqrt)]),
    "views": st.builds(
        lambda branches, times: views(*branches, times=times),
        st.lists(st.lists(pixels, max_size=3), min_size=1, max_size=3),
        st.integers(1, 3),
    ),
    "fields": st.dictionaries(
        st.sampled_from(["jpg", "seg.png", "json", "é"]),
        st.one_of(
            st.just(pil_decode),
            st.builds(lambda size: [image.decode(), image.resize(size)], size),
            st.builds(image.decode, st.sampled_from(["RGB", "L"])),
        ),
        min_size=1,
    ).map(fields),
    "synthetic.decode": st.builds(
        synthetic.decode,
        cost=st.one_of(st.integers(0, 3), st.floats(0, 3)),
        holds_gil=flag,
        shape=st.one_of(st.none(), st.lists(side, max_size=3)),
    ),
    "image.decode": st.builds(
        image.decode,
        st.sampled_from(["RGB", "L"]),
        max_pixels=st.integers(1, 1 << 40),
        upright=flag,
        reduce=flag,
    ),
    "image.resize": resizes(_resize),
    "image.fit": st.one_of(
        resizes(
            lambda draw, **options: Fit(draw(side), draw(side), draw(flag), divides=draw(flag), **options)
        ),
        resizes(
            lambda draw, **options: image.resize(
                draw(size),
                fit=draw(st.sampled_from(["cover", "contain"])),
                **options,
            )
        ),
    ),
    "image.center_crop": st.builds(image.center_crop, size, fill=fill),
    "image.random_resized_crop": resizes(_random_resized_crop),
    "image.random_crop": st.builds(image.random_crop, size, padding=padding, fill=fill, pad_if_needed=flag),
    "image.mirrored_crop": st.builds(
        image.random_crop, size, padding=padding, padding_mode=mode, pad_if_needed=flag
    ),
    "image.pad": st.builds(image.pad, padding, fill=fill),
    "image.mirrored_pad": st.builds(image.pad, padding, padding_mode=mode),
    "image.horizontal_flip": st.builds(image.horizontal_flip, chance),
    "image.vertical_flip": st.builds(image.vertical_flip, chance),
    "image.color_jitter": color_jitter,
    "image.grayscale": st.builds(image.grayscale, chance),
    "image.gaussian_blur": st.builds(
        image.gaussian_blur,
        st.one_of(st.sampled_from([1, 3, 9]), st.sampled_from([(3, 5), (1, 7)])),
        sigma=st.one_of(st.floats(0.1, 3), pair(0.1, 3)),
        p=chance,
    ),
    "image.rotation": st.builds(
        image.rotation, degrees(), interpolation=way, fill=fill, expand=flag, center=place()
    ),
    "image.affine": st.builds(
        image.affine,
        degrees(),
        translate=st.one_of(st.none(), st.tuples(chance, chance)),
        scale=st.one_of(st.none(), pair(0.1, 3)),
        shear=_shear(),
        interpolation=way,
        fill=fill,
        center=place(),
    ),
    "image.perspective": st.builds(image.perspective, chance, chance, interpolation=way, fill=fill),
    "image.invert": st.builds(image.invert, chance),
    "image.equalize": st.builds(image.equalize, chance),
    "image.autocontrast": st.builds(image.autocontrast, chance),
    "image.posterize": st.builds(image.posterize, st.integers(0, 8), chance),
    "image.solarize": st.builds(image.solarize, st.one_of(byte, st.floats(0, 255)), chance),
    "image.sharpness": st.builds(image.sharpness, st.one_of(st.integers(0, 3), st.floats(0, 3)), chance),
    "image.random_apply": nested,
    "image.random_choice": chosen.flatmap(
        lambda steps: st.builds(
            image.random_choice,
            st.just(steps),
            st.one_of(st.none(), st.lists(st.floats(0.1, 3), min_size=len(steps), max_size=len(steps))),
        )
    ),
    "image.rand_augment": st.builds(
        image.rand_augment,
        st.integers(0, 8),
        st.integers(0, 30),
        num_magnitude_bins=st.integers(31, 40),
        interpolation=way,
        fill=fill,
    ),
    "image.trivial_augment": st.builds(
        image.trivial_augment, num_magnitude_bins=side, interpolation=way, fill=fill
    ),
    "image.auto_augment": st.builds(
        image.auto_augment, st.one_of(st.just("imagenet"), policy), interpolation=way, fill=fill
    ),
    "image.normalise": st.one_of(
        st.builds(
            image.normalise,
            st.one_of(st.integers(0, 1), st.lists(st.floats(0, 1), min_size=1, max_size=3)),
            st.one_of(st.floats(0.1, 1), st.lists(st.floats(0.1, 1), min_size=1, max_size=3)),
            dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
            scale=st.floats(0.001, 1),
        ),
        st.builds(image.to_float, st.sampled_from(["float32", "float16", "bfloat16"])),
    ),
    "image.layout": st.builds(image.layout, st.sampled_from(["NCHW", "NHWC"]), contiguous=flag),
    "image.random_erasing": st.builds(
        image.random_erasing,
        chance,
        scale=pair(0.01, 0.9),
        ratio=pair(0.1, 9),
        value=erased,
        count=st.one_of(st.integers(1, 16), st.tuples(st.integers(1, 3), st.integers(3, 16))),
    ),
    "image.mask": st.builds(
        image.mask,
        st.sampled_from(["", "mask"]),
        fill=st.integers(0, 127),
        dtype=st.sampled_from(["uint8", "int64"]),
    ),
    "image.boxes": st.builds(
        image.boxes,
        st.sampled_from(["boxes", "b"]),
        per_box=st.one_of(st.just("labels"), st.lists(st.sampled_from(["a", "é"]))),
        min_size=st.one_of(st.integers(0, 9), st.floats(0, 9)),
    ),
    "image.mixup": mixups,
    "image.cutmix": cutmixes,
    "image.one_of": st.lists(st.one_of(mixups, cutmixes), min_size=1, max_size=3).map(
        lambda steps: image.one_of(*steps, weights=range(1, len(steps) + 1))
    ),
    "albumentations.center_crop": st.builds(Middle, side, side),
    "albumentations.color_jitter": st.builds(
        truncating.TruncatingJitter, pair(0, 3), pair(0, 3), pair(0, 3), pair(-0.5, 0.5)
    ),
    "albumentations.brightness_contrast": st.builds(
        truncating.BrightnessContrast, pair(-1, 1), pair(-1, 1), flag
    ),
    "albumentations.gaussian_blur": st.builds(
        truncating.SizedBlur, st.sampled_from([(0, 0), (3, 7)]), pair(0.1, 3)
    ),
    "timm.rand_augment": operations.flatmap(
        lambda some: st.builds(
            augment.RandomOperations,
            st.just(some),
            st.integers(0, len(some)),
            st.one_of(st.none(), st.tuples(*[st.floats(0.1, 1)] * len(some))),
        )
    ),
    "timm.auto_augment": st.lists(operations, min_size=1, max_size=3).map(
        lambda policies: augment.PolicyOperations(tuple(policies))
    ),
    "timm.aug_mix": st.builds(augment.MixedOperations, operations, st.integers(1, 3), st.integers(0, 3)),
}
"""By the name of each. Followers, batch steps and those for ``decode=`` are among them."""
