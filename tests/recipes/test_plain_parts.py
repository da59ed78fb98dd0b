"""What recipes are made of beside steps, as plain data and back: code of the user's, values, and sources."""

from __future__ import annotations

import functools
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace import image, synthetic
from headrace.recipes import Recipe, deterministic
from headrace.recipes.fingerprint import digest
from headrace.recipes.plain.values import read_value, write_value
from tests.recipes.test_plain import SOURCE, again, prepared, prints, same
from tests.strategies import words

# -- code of the user's -------------------------------------------------------------------------------------


class Labels:
    @classmethod
    def first(cls, value: Any) -> Any:
        return value

    @staticmethod
    def second(value: Any) -> Any:
        return value

    class Inner:
        def __init__(self, value: Any) -> None:
            self.value = value


def scaled(value: Any, *, by: Any = 1, table: Any = None) -> Any:
    return value * by


def read_file(path: bytes) -> np.ndarray:
    return np.frombuffer(Path(os.fsdecode(path)).read_bytes(), np.uint8)[:4]


TABLE = np.arange(6, dtype=">u2").reshape(2, 3)


@pytest.mark.parametrize(
    ("function", "path"),
    [
        (scaled, "tests.recipes.test_plain_parts:scaled"),
        (Labels.first, "tests.recipes.test_plain_parts:Labels.first"),
        (Labels.second, "tests.recipes.test_plain_parts:Labels.second"),
        (Labels.Inner, "tests.recipes.test_plain_parts:Labels.Inner"),
        (np.sqrt, "numpy:sqrt"),
        (str.upper, "builtins:str.upper"),
        (math.sqrt, "math:sqrt"),
        (int, "builtins:int"),
        (functools.partial(scaled, by=2.5), "tests.recipes.test_plain_parts:scaled"),
        (functools.partial(scaled, by=math.inf, table=TABLE), "tests.recipes.test_plain_parts:scaled"),
        (
            functools.partial(scaled, table={"a": (1, [2]), 3: b"x", None: Path("a/b")}),
            "tests.recipes.test_plain_parts:scaled",
        ),
        (functools.partial(max, 3), "builtins:max"),
    ],
)
def test_code_goes_by_its_import_path(function: Any, path: str) -> None:
    recipe = Recipe(SOURCE, image.decode(), target_transform=function, collate=function)
    data = recipe.to_dict(source=False)
    assert data["target_transform"]["code"] == path
    other = again(recipe, source=SOURCE, trust_code=True)
    if not isinstance(function, functools.partial):
        assert other.target_transform == function
    if isinstance(function, type):
        return
    for wrapped in (function, deterministic(function)):
        again(Recipe(SOURCE, wrapped, [wrapped]), source=SOURCE, trust_code=True)


@given(
    st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            words(),
            st.binary(max_size=9),
            st.floats(width=32).map(np.float32),
            st.lists(st.integers(-9, 9), max_size=4).map(lambda few: np.array(few, np.int16)),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(words(), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_values_survive_with_their_types(value: Any) -> None:
    data = write_value(value, "here")
    assert digest(read_value(json.loads(json.dumps(data, allow_nan=False)), "here")) == digest(value)


# -- sources ------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for at, blob in enumerate(SOURCE.blobs * 2):
        place = tmp_path / "data" / ("cat" if at % 2 else "dög")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{at}.jpg").write_bytes(blob)
    (tmp_path / "data" / "cat" / os.fsdecode(b"\xff.jpeg")).write_bytes(SOURCE.blobs[0])
    (tmp_path / "data" / "labels.csv").write_text("name,label\ncat/1.jpg,x\ncat/3.jpg,y\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "data"


def sources(root: Path) -> dict[str, Any]:
    paths = sorted(root.rglob("*.jpg"))
    masks: list[Any] = [path.with_suffix(".png") for path in paths]
    boxes = [{"boxes": [[1, 2.5]], "at": (n, None), "more": np.arange(n)} for n in range(len(paths))]
    return {
        "a folder": hr.folder("data"),
        "a folder of some endings": hr.folder(root, extensions=[".jpg"], max_bytes="1MiB", followlinks=False),
        "a folder without labels": hr.folder(root, labels=False, extensions=None),
        "a manifest": hr.folder(root, manifest="labels.csv"),
        "files": hr.files([os.path.relpath(path) for path in paths]),
        "one file": hr.files(paths[:1], [0.5]),
        "files with numbers": hr.files(paths, range(len(paths))),
        "files with floats": hr.files(paths, np.linspace(0, 1, len(paths), dtype=np.float32)),
        "files with rows": hr.files(paths, np.arange(2.0 * len(paths)).reshape(-1, 2)),
        "files with large numbers": hr.files(paths, np.arange(len(paths), dtype=np.uint64)),
        "files with paths": hr.files(paths, masks),
        "files with names": hr.files(paths, [str(mask) for mask in masks]),
        "files with boxes": hr.files(paths, boxes),
        "files for decode to read": hr.files(paths, encoded=False),
        "synthetic": synthetic.source(9, shape=(4, 5, 3), classes=4, latency=0.001),
        "synthetic of lengths": synthetic.source(9, bytes_per_sample=(3, 90), bandwidth=1e9),
    }


@pytest.mark.parametrize("part", ["all", "subset", "split"])
def test_sources_go_by_their_arguments(pictures: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipes = [
        Recipe(source, None if source.encoded else deterministic(read_file))
        for source in sources(pictures).values()
    ]
    monkeypatch.chdir("/")  # (they are read where nobody knows where they were written)
    for whole in recipes:
        recipe = whole.subset([0, -1, 0]) if part == "subset" else whole
        if part == "split" and len(whole) > 1:
            recipe = whole.split(0.5)[1]
        other = again(recipe, trust_code=True)
        assert same(other.source.targets, recipe.source.targets)
        assert getattr(other.source, "classes", None) == getattr(recipe.source, "classes", None)
        assert [other.source.identity(at) for at in range(len(other))] == [
            recipe.source.identity(at) for at in range(len(recipe))
        ]
        assert same(prepared(other, caches=True), prepared(recipe, caches=True))


def test_parts_are_small() -> None:
    recipe = Recipe(synthetic.source(70_000))
    for part, size in ((recipe.subset(range(70_000)), 4), (recipe.subset(range(60_000)), 2)):
        other = again(part)
        text = json.dumps(part.to_dict())
        assert len(text) < 1000 + len(part) * size * 4 / 3
        assert np.array_equal(other.source.indices, part.source.indices)  # type: ignore[attr-defined]
    again(recipe.subset([]))


def test_a_folder_is_listed_anew(pictures: Path) -> None:
    recipe = Recipe(hr.folder(pictures))
    data = recipe.to_dict()
    (pictures / "cat" / "more.jpg").write_bytes(SOURCE.blobs[0])
    other = Recipe.from_dict(data)
    assert len(other) == len(recipe) + 1 and prints(other) != prints(recipe)


def test_another_source_in_the_place_of_the_one_that_is_written(pictures: Path) -> None:
    recipe = Recipe(hr.folder(pictures), image.decode(), [image.resize((8, 8))]).subset([1])
    other = Recipe.from_dict(recipe.to_dict(), source=SOURCE)
    assert other.source is SOURCE
    assert other.steps == recipe.steps
