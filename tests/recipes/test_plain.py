"""Recipes as plain data and back: the same definition, whatever it is made of."""

from __future__ import annotations

import importlib
import json
import pkgutil
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
import headrace.recipes
from headrace import image, synthetic
from headrace.core.forms import Form
from headrace.recipes import Recipe, compile_recipe
from headrace.recipes.fields import Fields
from headrace.recipes.fingerprint import digest
from headrace.recipes.image.annotations import Follower
from headrace.recipes.image.mixing import BatchStep
from headrace.recipes.image.ops import Decode
from headrace.recipes.op import Op
from headrace.recipes.plain.registry import ENTRIES, entry_of
from headrace.recipes.plain.types import alternatives
from headrace.recipes.plain.writing import to_plain
from headrace.recipes.synthetic_decode import SyntheticDecode
from headrace.recipes.translate import steps_of
from headrace.recipes.translate.torchvision import flat
from headrace.recipes.views import Views
from tests.recipes import test_translate as tv
from tests.recipes import test_translate_albumentations as albumentations
from tests.recipes import test_translate_timm as timm
from tests.recipes.helpers import MemorySource, jpeg, order, picture
from tests.recipes.plain_steps import STEPS, shout
from tests.recipes.test_forms import CHAINS

FORMS = (Form.ENCODED, Form.DECODED, Form.AUGMENTED)
SOURCE = MemorySource([jpeg(picture(60 + 9 * n, 70, n)) for n in range(3)], np.arange(3))
DICTS = MemorySource(SOURCE.blobs, [{"boxes": [[1, 2, 30, 40]], "labels": [7], "mask": "x.png"}] * 3)


def again(recipe: Recipe, **options: Any) -> Recipe:
    """A recipe after a way through JSON, which is the same by every measure."""
    live = options.get("source") is not None
    data = recipe.to_dict(source=not live)
    text = json.dumps(data, allow_nan=False)
    assert json.loads(text) == data
    other = Recipe.from_dict(json.loads(text), **options)
    assert other.to_dict(source=not live) == data
    assert prints(other) == prints(recipe)
    assert other.profile_key == recipe.profile_key
    assert repr(other.steps) == repr(recipe.steps)
    return other


def prints(recipe: Recipe) -> list[str]:
    return [recipe.fingerprint(form) for form in FORMS] + [recipe.share_key(form) for form in FORMS]


def prepared(recipe: Recipe, *, caches: bool) -> tuple[Any, dict[int, str]]:
    """What comes of all samples, and what is wrong with those that fail."""
    work = order(recipe.source, range(len(recipe)))
    samples = compile_recipe(recipe, caches_decoded=caches).samples(work)
    return samples, {row: fault.reason for row, fault in work.faults.items()}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes() and one.shape == other.shape
    return type(one) is type(other) and bool(one == other)


# -- every step ---------------------------------------------------------------------------------------------


def recipe_of(step: Op) -> Recipe:
    """A recipe with a step where it belongs."""
    if isinstance(step, Decode | Fields | SyntheticDecode):
        return Recipe(SOURCE, step)
    if isinstance(step, BatchStep):
        return Recipe(SOURCE, image.decode(), [image.resize((9, 9))], batch=step)
    if isinstance(step, Follower):
        return Recipe(DICTS, image.decode(), [image.resize((9, 9))], follow=step)
    return Recipe(SOURCE, image.decode(), [step])


@pytest.mark.parametrize("name", sorted(STEPS))
def test_every_step_survives_with_any_options(name: str) -> None:
    @settings(max_examples=25)
    @given(STEPS[name])
    def check(step: Op) -> None:
        assert typing.cast(Any, entry_of(step)).name == name
        recipe = recipe_of(step)
        other = again(recipe, source=recipe.source, trust_code=True)
        written = to_plain(other, source=False)
        assert name in json.dumps(written)
        found = (*other.steps, other.decoder, other.batch, *other.followers)
        assert repr(step) in map(repr, found)

    check()


@pytest.mark.parametrize("name", sorted(STEPS))
def test_two_steps_are_written_alike_exactly_if_their_fingerprints_are_equal(name: str) -> None:
    @settings(max_examples=25)
    @given(STEPS[name], STEPS[name])
    def check(one: Op, other: Op) -> None:
        first, second = (to_plain(recipe_of(step), source=False) for step in (one, other))
        equal = digest(one.plain()) == digest(other.plain())
        assert (json.dumps(first) == json.dumps(second)) == equal

    check()


def concrete_steps() -> Iterator[type]:
    """All classes of steps that are not there to be derived from."""
    for module in pkgutil.walk_packages(headrace.recipes.__path__, "headrace.recipes."):
        importlib.import_module(module.name)
    waiting: list[type] = [Op]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("headrace.") and "__dataclass_fields__" in vars(kind):
            yield kind


def test_no_step_is_left_out() -> None:
    """Whoever adds a step gives it a name in the registry, and draws it in ``plain_steps``."""
    found = set(concrete_steps())
    assert len(found) > 30
    assert found == {entry.kind for entry in ENTRIES}
    names = [entry.name for entry in ENTRIES]
    assert sorted(names) == sorted({*names}) == sorted(STEPS)


@pytest.mark.parametrize(
    "function",
    [
        *(getattr(image, name) for name in image.__all__ if name != "steps_of"),
        *(hr.views, hr.deterministic, hr.fields, synthetic.decode),
    ],
    ids=lambda function: function.__name__,
)
def test_what_every_public_function_makes_has_a_name(function: Any) -> None:
    made = alternatives(typing.get_type_hints(function)["return"])
    assert {*made} <= {entry.kind for entry in ENTRIES}


def test_names_and_options_of_a_document_stay() -> None:
    """Documents of today are read by all versions to come that say format 1."""
    steps = [image.random_resized_crop(224), image.horizontal_flip(), image.posterize(3), image.to_float()]
    recipe = Recipe(SOURCE, image.decode(), steps, batch=image.mixup(5), target_transform=shout)
    assert recipe.to_dict(source=False) == {
        "format": 1,
        "decode": {
            "step": "image.decode",
            "mode": "RGB",
            "max_pixels": 180_000_000,
            "upright": True,
            "reduce": True,
        },
        "augment": [
            {
                "step": "image.random_resized_crop",
                "height": 224,
                "width": 224,
                "scale": [0.08, 1.0],
                "ratio": [0.75, 4 / 3],
                "interpolation": "bilinear",
                "antialias": False,
                "shrink_on_load": True,
            },
            {"step": "image.horizontal_flip", "p": 0.5},
            {"step": "image.posterize", "amount": 3, "p": 0.5},
            {"step": "image.normalise", "mean": [0.0], "std": [1.0], "dtype": "float32", "scale": 1 / 255},
        ],
        "collate": None,
        "target_transform": {"code": "tests.recipes.plain_steps:shout"},
        "batch": {"step": "image.mixup", "classes": 5, "alpha": 1.0, "p": 1.0},
        "follow": [],
    }


def test_numbers_that_another_program_shortened_mean_the_same() -> None:
    """JSON of other languages writes 1.0 as 1."""
    steps = [image.color_jitter(1.0), image.grayscale(1.0), image.normalise(0.0, 1.0, scale=1.0)]
    recipe = Recipe(SOURCE, image.decode(), steps)
    text = json.dumps(recipe.to_dict(source=False)).replace(".0", "")
    assert prints(Recipe.from_dict(json.loads(text), source=SOURCE)) == prints(recipe)


# -- whole recipes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("name", sorted(CHAINS))
def test_samples_are_equal_bit_for_bit(name: str, caches: bool) -> None:
    recipe = Recipe(SOURCE, image.decode(), CHAINS[name])
    if any("<lambda>" in str(step) for step in recipe.steps):
        pytest.skip("its code has no import path")
    other = again(recipe, source=SOURCE, trust_code=True)
    assert same(prepared(other, caches=caches), prepared(recipe, caches=caches))


@settings(max_examples=60)
@given(st.sampled_from(sorted({*STEPS} - {"call", "image.rotation"})).flatmap(lambda name: STEPS[name]))
def test_samples_of_drawn_steps_are_equal(step: Op) -> None:
    recipe = recipe_of(step)
    if recipe.followers or isinstance(step, SyntheticDecode):
        return
    if isinstance(step, Decode | BatchStep | Views):
        recipe = Recipe(SOURCE, image.decode(), [image.resize((24, 20))], batch=recipe.batch)
    other = again(recipe, source=SOURCE)
    assert same(prepared(other, caches=False), prepared(recipe, caches=False))


PIPELINES: dict[str, Any] = {
    "torchvision, training": lambda: [
        tv.RandomResizedCrop(32),
        tv.RandomHorizontalFlip(),
        tv.ToTensor(),
        tv.Normalize(tv.MEAN, tv.STD),
    ],
    "torchvision, evaluation": lambda: [tv.Resize(40), tv.CenterCrop(32), tv.ToTensor()],
    "torchvision, images": lambda: [tv.Resize(40), tv.CenterCrop(32)],
    "timm, evaluation": lambda: [timm.keep_ratio(), timm.crop_or_pad(), timm.MaybeToTensor()],
    "timm, training": lambda: [
        timm.rand(timm.op("Rotate"), timm.op("Solarize", magnitude_std=float("inf")), weights=[0.5, 0.5]),
        timm.AutoAugment(policy=[[timm.op("Invert"), timm.op("TranslateX")], [timm.op("Color")]]),
        timm.AugMix(ops=[timm.op("ShearY")], alpha=1.0, width=3, depth=-1, blended=False),
        tv.Resize((24, 24)),
        timm.MaybeToTensor(),
        timm.erasing(mode="pixel", max_count=3),
    ],
    "albumentations": lambda: albumentations.Compose(
        transforms=[
            albumentations.SmallestMaxSize(max_size=40),
            albumentations.CenterCrop(),
            albumentations.HorizontalFlip(),
            albumentations.ColorJitter(p=0.8),
            albumentations.BrightnessContrast(),
            albumentations.OneOf(
                transforms=[albumentations.ToGray(p=0.2), albumentations.GaussianBlur(p=0.6)],
                transforms_ps=[0.25, 0.75],
                p=0.3,
            ),
            albumentations.Normalize(),
            albumentations.ToTensorV2(),
        ]
    ),
}


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_translated_pipelines(name: str) -> None:
    steps = steps_of(PIPELINES[name](), strict=True)
    assert steps and not [note for note in steps.notes if note.why]
    recipe = Recipe(SOURCE, image.decode(upright=False), steps)
    other = again(recipe, source=SOURCE)
    assert same(prepared(other, caches=False), prepared(recipe, caches=False))


def test_what_hands_images_over_to_the_user_is_headrace_s_own() -> None:
    """So that nothing has to be trusted for it."""
    transforms = PIPELINES["torchvision, images"]()
    steps, _ = headrace.recipes.translate.translate([one for each in transforms for one in flat(each)])
    recipe = Recipe(SOURCE, image.decode(), steps)
    assert recipe.to_dict(source=False)["augment"][-1]["function"] == {"own": "to_pil"}
    again(recipe, source=SOURCE)


def test_followers_and_what_collates_their_batches() -> None:
    for size in (16, (16, 16)):
        steps = [image.resize(size), image.horizontal_flip()]
        follow = [image.boxes(), image.mask("mask", fill=3)]
        recipe = Recipe(DICTS, image.decode(), steps, follow=follow)
        other = again(recipe, source=DICTS)
        assert other.collate is recipe.collate is not None
        assert other.followers == recipe.followers
