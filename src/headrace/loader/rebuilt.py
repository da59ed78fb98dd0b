"""Loaders that trainers build anew around parts of one of ours: they are ours again, and know what it was told."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.utils import data as torch_data

from headrace.loader.own_order import Carried, carried_by
from headrace.loader.recipe_dataset import recipe_of

DEFAULTS: dict[str, Any] = {
    "cache": None,
    "disk": None,
    "tier": None,
    "split": None,
    "seed": None,
    "on_error": "raise",
    "error_budget": 0.01,
    "share": None,
    "sampling": None,
    "eviction": None,
    "native": True,
    "device": None,
    "gpu_decode": False,
    "gpu_cache": None,
}
"""Of the parameters that torch does not have and that belong to the data, not to the process."""
_COLLATE = (torch_data.default_collate, torch_data.default_convert)
_PARAMETERS = list(inspect.signature(torch_data.DataLoader.__init__).parameters)[2:]


def inherit(
    own: dict[str, Any],
    collate_fn: Callable[[Any], Any] | None,
    prefetch_factor: int | None,
    persistent_workers: bool | None,
    carried: Carried | None,
) -> Carried:
    """What a new loader goes by: what it is given, completed by what the parts it is made of carry.

    torch writes its defaults into a loader's attributes, from where trainers take them; here they are undone.
    """
    own = {name: value for name, value in own.items() if _differs(value, DEFAULTS[name])}
    if carried is None:
        return Carried(own, prefetch_factor, persistent_workers, collate_fn)
    if carried.collate_fn is None and any(collate_fn is kind for kind in _COLLATE):
        collate_fn = None
    if carried.prefetch_factor is None and prefetch_factor == 2:
        prefetch_factor = None
    if carried.persistent_workers is None and not persistent_workers:
        persistent_workers = None
    options = {**carried.options, **own}
    return Carried(options, prefetch_factor, persistent_workers, collate_fn, carried.told)


def _differs(value: Any, default: Any) -> bool:
    return value is not None if default is None else bool(value != default)


def adopt(ours: type[Any]) -> None:
    """Let torch's loader be one of ``ours`` wherever it is made of parts of one.

    Accelerate, Ray and others call ``torch.utils.data.DataLoader`` with a loader's dataset and samplers, so that is
    where the class has to be chosen: in their loader, cache, sharing, seed and error rule are lost without a word.
    """

    def new(cls: type[Any], dataset: Any = None, *args: Any, **options: Any) -> Any:
        if cls is torch_data.DataLoader:
            given = {**dict(zip(_PARAMETERS, args, strict=False)), **options}
            samplers = given.get("sampler"), given.get("batch_sampler")
            if recipe_of(dataset, look=True) is not None or carried_by(*samplers) is not None:
                cls = ours
        return object.__new__(cls)

    torch_data.DataLoader.__new__ = new  # type: ignore[method-assign]
