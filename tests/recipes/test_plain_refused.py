"""What cannot be written, or is no recipe that was: always refused with an error that says what and why."""

from __future__ import annotations

import copy
import functools
import json
import random
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import image, synthetic
from headrace.core.errors import OptionError
from headrace.recipes import Recipe, deterministic
from headrace.recipes.image.geometry import Flip
from headrace.recipes.image.pixels import Pixels
from headrace.recipes.image.policies import RandAugment
from headrace.recipes.op import Op
from tests.recipes.plain_steps import STEPS, shout
from tests.recipes.test_plain import SOURCE, recipe_of
from tests.strategies import words

# -- what cannot be written ---------------------------------------------------------------------------------


class Doubled:
    def __call__(self, value: Any) -> Any:
        return value * 2


@dataclass(frozen=True)
class Darker(Pixels):
    by: int

    def parameters(self, numbers: Any) -> list[Any]:
        return [True] * len(numbers)

    def apply(self, image: Any, parameters: Any) -> Any:
        return image // self.by


class Bare(Pixels):
    parameters = Darker.parameters
    apply = Darker.apply


def replaced(value: Any) -> Any:
    return value


original, replaced = replaced, lambda value: value  # type: ignore[assignment]


def local() -> Any:
    def inner(value: Any) -> Any:
        return value

    return inner


def of_module(name: str, **attributes: Any) -> Any:
    space = {"__name__": name}
    exec("def function(value): return value", space)
    vars(space["function"]).update(attributes)
    return space["function"]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda value: value, "is a lambda"),
        (local(), "local.<locals>.inner is defined inside a function"),
        (Doubled(), "is an object of class Doubled"),
        (Doubled().__call__, "is a method of an object of class Doubled"),
        (original, "is not what is found as tests.recipes.test_plain_refused:replaced"),
        (of_module("__main__"), "is defined in the script that runs"),
        (of_module("__mp_main__"), "is defined in the script that runs"),
        (of_module("no_such_module"), "is of the module 'no_such_module', which cannot be imported"),
        (functools.partial(lambda value: value, 1), "is a lambda"),
        (functools.partial(shout, {1, 2}), "is of type builtins.set, which plain data cannot hold"),
        (functools.partial(shout, key=Doubled()), "Doubled, which plain data cannot hold"),
        (functools.partial(shout, np.array(["a"])), "an array of <U1 is not plain data"),
    ],
)
def test_code_without_an_import_path(function: Any, why: str) -> None:
    with pytest.raises(OptionError, match=r"^target_transform: ") as error:
        Recipe(SOURCE, target_transform=function).to_dict(source=False)
    assert why in str(error.value)
    with pytest.raises(OptionError, match=r"^collate: "):
        Recipe(SOURCE, collate=function).to_dict(source=False)
    with pytest.raises(OptionError, match=r"^decode: "):
        Recipe(SOURCE, function).to_dict(source=False)
    with pytest.raises(OptionError, match=r"^augment\[1\]: "):
        Recipe(SOURCE, shout, [shout, deterministic(function)]).to_dict(source=False)
    with pytest.raises(OptionError, match=r"^augment\[0\], views, branches\[1\]\[0\]: "):
        Recipe(SOURCE, shout, hr.views([shout], [function])).to_dict(source=False)


def test_a_module_that_was_made_while_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("made_just_now")
    exec("def function(value): return value", vars(made))
    monkeypatch.setitem(sys.modules, "made_just_now", made)
    with pytest.raises(OptionError, match="'made_just_now', which cannot be imported"):
        Recipe(SOURCE, target_transform=made.function).to_dict(source=False)


def test_data_that_is_mapped_from_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "table.npy", np.arange(5))
    table = np.load(tmp_path / "table.npy", mmap_mode="r")
    with pytest.raises(OptionError, match=r"numpy\.memmap, which plain data cannot hold"):
        Recipe(SOURCE, functools.partial(shout, table)).to_dict(source=False)
    with pytest.raises(OptionError, match="mapped from a file"):
        Recipe(SOURCE, functools.partial(shout, np.asarray(table))).to_dict(source=False)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(OptionError, match="contains itself"):
        Recipe(SOURCE, functools.partial(shout, loop)).to_dict(source=False)


@pytest.mark.parametrize("step", [Darker(2), Bare()])
def test_steps_of_the_user_s_own_classes(step: Op) -> None:
    with pytest.raises(
        OptionError, match=r"augment\[0\]: .* is a step of a class that headrace does not know"
    ):
        Recipe(SOURCE, image.decode(), [step]).to_dict(source=False)


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (
            image.rand_augment(np.int64(2)),
            "image.rand_augment, count: .* is of type int64, and only int can be",
        ),
        (
            image.layout(contiguous=1),
            "image.layout, contiguous: 1 is of type int, and only bool can be written",
        ),
        (image.pad(0, fill=True), "fill.0.: True is of type bool, and only int"),
        (Flip(True, 3.0), "image.horizontal_flip: .* p is a probability"),
        (RandAugment(1, 50, 31, "nearest", (0,)), "image.rand_augment: .*from 0 to 30"),
    ],
    ids=str,
)
def test_options_that_would_not_come_back(step: Any, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        Recipe(SOURCE, image.decode(), [step]).to_dict(source=False)


def test_sources_that_are_more_than_their_arguments() -> None:
    for recipe in (Recipe(SOURCE), Recipe(SOURCE).subset([0])):
        with pytest.raises(OptionError, match=r"source: .*MemorySource.* from_dict\(data, source=\.\.\.\)"):
            recipe.to_dict()
        data = recipe.to_dict(source=False)
        with pytest.raises(OptionError, match="written without its source; pass source="):
            Recipe.from_dict(data)
        assert Recipe.from_dict(data, source=SOURCE).source is SOURCE
    with pytest.raises(OptionError, match="is no source"):
        Recipe.from_dict(data, source=3)  # type: ignore[arg-type]


def test_datasets_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets are not installed")
    source = hr.hf(datasets.Dataset.from_dict({"image": [b"a", b"b"], "label": [0, 1]}))
    recipe = Recipe(source).subset([1])
    with pytest.raises(OptionError, match=r"source: hf\(2 samples.*source=False"):
        recipe.to_dict()
    assert len(Recipe.from_dict(recipe.to_dict(source=False), source=source)) == 2


# -- what is no recipe --------------------------------------------------------------------------------------


def document() -> dict[str, Any]:
    """One with something of everything."""
    recipe = Recipe(
        source=synthetic.source(20, shape=(8, 8, 3), classes=5),
        decode=image.decode(),
        augment=[
            image.random_resized_crop(8),
            image.color_jitter(0.4),
            image.random_choice([image.random_apply(image.solarize(128)), image.rotation(5, center=(1, 2))]),
            image.auto_augment([(("Invert", 0.5, None), ("Color", 1.0, 3))]),
            image.to_float(),
        ],
        batch=image.one_of(image.mixup(5), image.cutmix(5)),
    )
    return recipe.subset(range(0, 20, 3)).to_dict()


def with_code() -> dict[str, Any]:
    steps = [functools.partial(shout, (1, np.arange(3), {"a": 1.5})), deterministic(shout)]
    return Recipe(synthetic.source(3), shout, steps).to_dict()


def test_code_is_not_imported_unless_it_is_trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "not_to_be_imported.py").write_text("def function(value): return value")
    monkeypatch.syspath_prepend(tmp_path)
    for place in ("collate", "target_transform"):
        data = document() | {place: {"code": "not_to_be_imported:function"}, "batch": None}
        for trust in (False, 1, "yes"):
            with pytest.raises(
                OptionError, match=rf"^{place}: .*not_to_be_imported:function.*trust_code=True"
            ):
                Recipe.from_dict(data, trust_code=trust)  # type: ignore[arg-type]
        assert "not_to_be_imported" not in sys.modules
    assert Recipe.from_dict(data, trust_code=True).target_transform(5) == 5  # type: ignore[misc]
    assert "not_to_be_imported" in sys.modules
    del sys.modules["not_to_be_imported"]
    with pytest.raises(
        OptionError, match=r"^decode: the recipe has code of its own, tests.recipes.plain_steps:shout"
    ):
        Recipe.from_dict(with_code())


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no_such_module:function", "cannot be imported .ModuleNotFoundError"),
        ("tests.recipes.plain_steps:nothing", "cannot be imported .AttributeError"),
        ("tests.recipes.plain_steps:STEPS", "which cannot be called"),
        ("tests.recipes.broken_module:f", "cannot be imported .ModuleNotFoundError"),
        ("__main__:f", "is no import path"),
        ("os", "is no import path"),
        ("os:", "is no import path"),
        (":f", "is no import path"),
        ("..os:f", "is no import path"),
        ("os:a b", "is no import path"),
    ],
)
def test_code_that_is_not_there(path: str, why: str) -> None:
    data = document() | {"target_transform": {"code": path}}
    with pytest.raises(OptionError, match=f"^target_transform: .*{why}"):
        Recipe.from_dict(data, trust_code=True)


def test_code_that_fails_as_it_is_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fails_at_once.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionError, match=r"cannot be imported .ZeroDivisionError: division by zero"):
        Recipe.from_dict(document() | {"target_transform": {"code": "fails_at_once:f"}}, trust_code=True)


def changed(*path: Any, to: Any) -> dict[str, Any]:
    """The document with something else in one place."""
    data = document()
    place: Any = data
    for part in path[:-1]:
        place = place[part]
    if to is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return data


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, r"from_dict\(None\): expected what Recipe.to_dict\(\) gives"),
        ([], r"expected what Recipe.to_dict\(\) gives"),
        ({}, r"expected what Recipe.to_dict\(\) gives"),
        (
            changed("format", to=2),
            "of format 2, and headrace .* reads format 1; it was made by a newer version",
        ),
        (changed("format", to=True), "of format True"),
        (changed("speed", to=2), "there is no option 'speed'; the data was made by another version"),
        (changed("follow", to=...), "the option 'follow' is missing"),
        (changed("augment", to={}), "augment: expected a list, got {}"),
        (changed("augment", 1, to=3), r"augment\[1\]: expected a step, got 3"),
        (
            changed("augment", 1, "step", to="image.melt"),
            r"augment\[1\]: there is no step 'image.melt'; .*version",
        ),
        (changed("augment", 1, "heat", to=1), r"augment\[1\], image.color_jitter: there is no option 'heat'"),
        (changed("augment", 1, "hue", to=...), r"image.color_jitter: the option 'hue' is missing"),
        (changed("augment", 0, "height", to=8.0), "random_resized_crop, height: expected int, got 8.0"),
        (changed("augment", 0, "height", to=True), "random_resized_crop, height: expected int, got True"),
        (
            changed("augment", 0, "height", to=-8),
            r"augment\[0\], image.random_resized_crop: .*size in pixels",
        ),
        (changed("augment", 0, "scale", to=[1.0]), r"scale: expected tuple\[float, float\], got \[1.0\]"),
        (changed("augment", 0, "interpolation", to="x"), "interpolation='x'.: expected one of"),
        (changed("augment", 1, "brightness", to=[1, "2"]), r"brightness\[1\]: expected float, got '2'"),
        (changed("augment", 1, "brightness", 0, to=10**400), "image.color_jitter: int too large"),
        (changed("augment", 3, "policy", 0, 0, 0, to="Melt"), "image.auto_augment: .* is no pair"),
        (changed("augment", 0, "step", to="image.mixup"), r"augment\[0\], image.mixup: there is no option"),
        (changed("batch", "step", to="image.decode"), "batch, image.decode: this is no BatchStep"),
        (
            changed("augment", 2, "choices", 0, 0, "p", to=7),
            r"choices\[0\]\[0\], image.random_apply: .*probability",
        ),
        (changed("batch", "steps", 0, "classes", to=4), "batch, image.one_of: .*all must agree"),
        (changed("source", to=None), "source: expected a source, got None"),
        (changed("source", "of", "source", to="cloud"), "source, subset, cloud: there is no such source"),
        (changed("source", "of", "size", to=0), "synthetic.source: .*must have at least one sample"),
        (changed("source", "of", "size", to=5), "source, subset: .*the source has 5 samples"),
        (changed("source", "indices", "array", to="AA"), "source, subset: 'AA' is no base64"),
        (changed("source", "indices", "dtype", to="O"), "no dtype: 'O'"),
        (changed("source", "indices", "dtype", to="<f9"), "an array that is damaged"),
        (changed("source", "indices", "shape", to=[3]), r"7 numbers for the shape \[3\]"),
        (changed("source", "indices", "shape", to=[-7]), "no shape"),
        (
            changed("target_transform", to={"own": "exec"}),
            "target_transform: headrace has no function 'exec'",
        ),
        (changed("target_transform", to="os:system"), "'os:system' is no function that headrace writes"),
        (changed("decode", to=None), r"augment\[0\], .*needs an image"),
    ],
)
def test_damaged_documents_say_what_is_wrong(data: Any, why: str) -> None:
    with pytest.raises(OptionError, match=why):
        Recipe.from_dict(data)


def test_a_source_that_is_not_here() -> None:
    source = {"root": "/no/such", "extensions": None, "manifest": None, "labels": True, "followlinks": True}
    data = document() | {"source": {"source": "folder", **source, "allow_empty": False, "max_bytes": 9}}
    with pytest.raises(OptionError, match=r"^source, folder: folder\('/no/such'\) does not exist"):
        Recipe.from_dict(data)


def test_a_document_that_is_nested_without_end() -> None:
    step: Any = {"step": "image.invert", "p": 1.0}
    for _ in range(5000):
        step = {"step": "image.random_apply", "steps": [step], "p": 1.0}
    with pytest.raises(OptionError, match="nested too deeply"):
        Recipe.from_dict(document() | {"augment": [step]})


# -- damage at random ---------------------------------------------------------------------------------------


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places in a document."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 300),
    st.floats(),
    words(max_size=8),
    st.sampled_from(
        [10**400, "image.resize", "subset", "<i8", "nearest", "RGB", b"x", (1, 2), {1}, np.float32(1)]
    ),
    st.recursive(
        st.integers(0, 9),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(["step", "source", "own", "tuple", "dict", "float", "array", "p", "steps"]),
                inner,
            ),
        ),
        max_leaves=5,
    ),
)


def damaged(data: Any, draw: Any, original: Any) -> None:
    """Change one place: other things in it, nothing, more than there should be, or a part from elsewhere."""
    everywhere = list(places(data))
    path = draw(st.sampled_from(everywhere))
    place = data
    for part in path[:-1]:
        place = place[part]
    how = draw(st.sampled_from(["junk", "gone", "more", "moved"]))
    if how == "gone":
        del place[path[-1]]
    elif how == "junk":
        place[path[-1]] = draw(junk)
    elif how == "moved":
        part = original
        for key in draw(st.sampled_from(list(places(original)))):
            part = part[key]
        place[path[-1]] = copy.deepcopy(part)
    elif isinstance(place, dict):
        place[draw(st.one_of(words(max_size=5), st.integers()))] = draw(junk)
    else:
        place.append(draw(junk))


DOCUMENTS = [document(), with_code()]


@pytest.mark.fuzz
@given(st.data(), st.sampled_from(range(len(DOCUMENTS))), st.integers(1, 4))
def test_a_damaged_document_is_refused_or_is_a_recipe(draws: Any, which: int, times: int) -> None:
    original = DOCUMENTS[which]
    data = copy.deepcopy(original)
    for _ in range(times):
        damaged(data, draws.draw, original)
    try:
        recipe = Recipe.from_dict(data, trust_code=which == 1)
    except OptionError:
        return
    # It may be another one, but it is one that can be written and read.
    again = json.loads(json.dumps(recipe.to_dict(), allow_nan=False))
    assert Recipe.from_dict(again, trust_code=True).to_dict() == again


@pytest.mark.parametrize("name", sorted({*STEPS} - {"call"}))
def test_every_step_is_refused_or_made_whatever_its_options(name: str) -> None:
    @settings(max_examples=40)
    @given(STEPS[name], st.data())
    def check(step: Op, draws: Any) -> None:
        recipe = recipe_of(step)
        data = recipe.to_dict(source=False)
        damaged(data, draws.draw, data)
        try:
            other = Recipe.from_dict(data, source=recipe.source)
        except OptionError:
            return
        again = other.to_dict(source=False)
        assert Recipe.from_dict(again, source=recipe.source).to_dict(source=False) == again

    check()


def test_the_fuzz_reaches_far() -> None:
    """Most of what is damaged is refused for many reasons, and some of it is a recipe still."""
    rng = random.Random(5)
    reasons, good = set(), 0
    for _ in range(400):
        data = copy.deepcopy(DOCUMENTS[0])
        path = rng.choice(list(places(data)))
        place: Any = data
        for part in path[:-1]:
            place = place[part]
        place[path[-1]] = rng.choice([0.5, 3, "x", None, [], {}])
        try:
            Recipe.from_dict(data)
            good += 1
        except OptionError as error:
            reasons.add(str(error).partition(":")[0])
    assert good > 10 and len(reasons) > 20
