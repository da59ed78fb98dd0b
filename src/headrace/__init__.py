"""headrace: the data plane that feeds deep-learning training.

    import headrace as hr

    train = hr.Recipe(
        source=hr.folder("/data/train"),
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(224), hr.image.horizontal_flip()],
    )
    for images, labels in hr.DataLoader(train, batch_size=256, shuffle=True, cache="8GiB"):
        ...

Or, over any torch dataset: ``hr.DataLoader(dataset, batch_size=256, num_workers=8)``.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING, Any

from headrace.core.version import __version__ as __version__

if TYPE_CHECKING:
    from headrace import image, synthetic
    from headrace.core.errors import (
        BadSample,
        HeadraceError,
        HostUnavailable,
        LoaderClosed,
        NotNow,
        OptionError,
        OutOfSharedMemory,
        SampleError,
        StateError,
        TooManyBadSamples,
        WorkerDied,
    )
    from headrace.core.forms import Form
    from headrace.datastore import stored
    from headrace.loader import DataLoader, Disk, Redis, Stats
    from headrace.recipes import Recipe, deterministic, fields, views
    from headrace.sources import files, folder, hf, shards, table


__all__ = [
    "BadSample",
    "DataLoader",
    "Disk",
    "Form",
    "HeadraceError",
    "HostUnavailable",
    "LoaderClosed",
    "NotNow",
    "OptionError",
    "OutOfSharedMemory",
    "Recipe",
    "Redis",
    "SampleError",
    "StateError",
    "Stats",
    "TooManyBadSamples",
    "WorkerDied",
    "deterministic",
    "fields",
    "files",
    "folder",
    "hf",
    "image",
    "shards",
    "stored",
    "synthetic",
    "table",
    "views",
]


# Names come in when somebody asks for them. A shared host and most commands need neither recipes nor OpenCV, and
# torch is imported by those who load data with it, and by nobody else.
_HOMES = {
    "DataLoader": "loader",
    "Disk": "loader",
    "Redis": "loader",
    "Form": "core.forms",
    "Recipe": "recipes",
    "Stats": "loader",
    "deterministic": "recipes",
    "fields": "recipes",
    "files": "sources",
    "folder": "sources",
    "hf": "sources",
    "shards": "sources",
    "table": "sources",
    "stored": "datastore",
    "views": "recipes",
}
_MODULES = ("core", "image", "recipes", "sources", "synthetic")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"headrace.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"headrace.{_HOMES.get(name, 'core.errors')}"), name)
    globals()[name] = value
    return value


if "torch" in sys.modules:
    # It costs nothing more then. Lightning, for one, looks for subclasses of torch's loader before it runs the hooks
    # of the user's that make loaders.
    with contextlib.suppress(ImportError):  # (torch may be on its way in just now)
        from headrace.loader import DataLoader, Stats
