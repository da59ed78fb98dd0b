"""What cannot be written as plain data: refused with an error that says what and why."""

from __future__ import annotations

import functools
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace import image
from headrace.core.errors import OptionError
from headrace.recipes import Recipe, deterministic
from headrace.recipes.image.geometry import Flip
from headrace.recipes.image.pixels import Pixels
from headrace.recipes.image.policies import RandAugment
from headrace.recipes.op import Op
from tests.recipes.plain_steps import shout
from tests.recipes.test_plain import SOURCE


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
