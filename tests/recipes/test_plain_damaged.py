"""Data that is no recipe, or none that may be read: always refused with an error that says what and why."""

from __future__ import annotations

import copy
import functools
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import files, image, synthetic
from headrace.core.errors import OptionError
from headrace.recipes import Recipe, deterministic
from headrace.recipes.op import Op
from tests.recipes.plain_steps import STEPS, shout
from tests.recipes.test_plain import recipe_of
from tests.strategies import words


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
        for listed in ([], ["os", "not_to_be"], ("not_to_be_imported.more",)):
            with pytest.raises(
                OptionError, match=rf"^{place}: not_to_be_imported:function is not of the modules"
            ):
                Recipe.from_dict(data, trust_code=listed)
        assert "not_to_be_imported" not in sys.modules
    assert Recipe.from_dict(data, trust_code=True).target_transform(5) == 5  # type: ignore[misc]
    assert "not_to_be_imported" in sys.modules


def test_a_list_lets_in_what_its_modules_define_and_not_what_they_import(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed" / "__init__.py").write_text("from listed.inner import function")
    lines = ["import os", "from os import system", "def function(value): return value", "class Kind: ..."]
    (tmp_path / "listed" / "inner.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    for path in ("listed.inner:function", "listed.inner:Kind"):
        data = document() | {"target_transform": {"code": path}, "batch": None}
        for listed in (["listed"], {"listed.inner"}, ("other", "listed.inner")):
            assert Recipe.from_dict(data, trust_code=listed).target_transform is not None
    for path in ("listed.inner:os.system", "listed.inner:system", "listed:function"):
        data = document() | {"target_transform": {"code": path}, "batch": None}
        with pytest.raises(OptionError, match="is not defined there"):
            Recipe.from_dict(data, trust_code=["listed"])
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


def with_files() -> dict[str, Any]:
    targets = [
        {"boxes": [[1, 2.5]], "at": (n, None), "more": np.arange(n), "path": Path("a")} for n in range(3)
    ]
    source = files([f"/data/{n}.jpg" for n in range(3)], targets)
    return Recipe(source, image.decode(), [image.resize(9)], follow=image.boxes()).to_dict()


DOCUMENTS = [document(), with_code(), with_files()]


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
