"""From what is written on the command line to a recipe."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from headrace import image
from headrace.core.errors import OptionError
from headrace.recipes.recipe import Recipe
from headrace.sources import folder

_FORMS = "write module:recipe, file.py:recipe, or the path of a folder"


def find_recipe(text: str) -> Recipe:
    """The recipe that ``module:name``, ``file.py:name`` or a folder stands for.

    What has the name is a recipe, or a function without arguments that makes one. Modules of the current directory
    can be imported. A folder gets the usual recipe for training on images.
    """
    if os.path.isdir(text):
        return _of_folder(text)
    place, _, name = text.rpartition(":")
    if not place or not name:
        what = f"no folder {text!r}" if os.sep in text else f"{text!r} is neither a folder nor module:recipe"
        raise OptionError(f"{what}; {_FORMS}")
    return _as_recipe(_attribute(_module(place), place, name), text)


def _of_folder(path: str) -> Recipe:
    inside = [entry for entry in os.scandir(path) if not entry.name.startswith(".")]
    if not inside:
        raise OptionError(f"the folder {path!r} is empty; name one with images in it")
    labels = any(entry.is_dir() for entry in inside)
    return Recipe(
        source=folder(path, labels=labels, allow_empty=True),
        decode=image.decode(),
        augment=[image.random_resized_crop(224), image.horizontal_flip()],
    )


def _module(place: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    if place.endswith(".py") or os.sep in place:
        return _file(place)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise OptionError(
                f"there is no module {error.name!r}, neither installed nor in {here}; {_FORMS}"
            ) from None
        raise _broken(place, error) from error
    except Exception as error:
        raise _broken(place, error) from error


def _file(path: str) -> ModuleType:
    """A script, as a process that multiprocessing starts imports it: what is under ``__main__`` does not run.

    Its functions then have the fingerprints that they have when the script itself runs.
    """
    spec = importlib.util.spec_from_file_location("__mp_main__", path)
    if not os.path.isfile(path) or spec is None or spec.loader is None:
        raise OptionError(f"there is no Python file {path!r}; {_FORMS}")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.modules["__mp_main__"] = sys.modules["__main__"] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise _broken(path, error) from error
    return module


def _broken(place: str, error: Exception) -> OptionError:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return OptionError(
        f"{place} cannot be imported: {type(error).__name__}: {error} ({where.filename}, line {where.lineno})"
    )


def _attribute(module: ModuleType, place: str, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            recipes = sorted(key for key, value in vars(module).items() if isinstance(value, Recipe))
            there = f"; its recipes are {', '.join(recipes)}" if recipes else ""
            raise OptionError(f"{place} has no {name!r}{there}")
        found = getattr(found, part)
    return found


def _as_recipe(found: Any, text: str) -> Recipe:
    if not isinstance(found, Recipe) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise OptionError(
                f"{text} is called without arguments to make a recipe, and that fails: "
                f"{type(error).__name__}: {error}"
            ) from error
    if not isinstance(found, Recipe):
        raise OptionError(
            f"{text} is of type {type(found).__name__}; it has to be a headrace.Recipe, or a function that makes one"
        )
    return found
