"""A loader's part in sharing: who its job is, and what it can share."""

from __future__ import annotations

import functools
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from headrace.channel.channel import Dial
from headrace.coordinate.protocol import Join
from headrace.core import environment
from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.core.layout import RowLayout
from headrace.engine.bodies import Body
from headrace.engine.share import SharedStore
from headrace.host.client import SharedClient
from headrace.loader.device_cache import Rooms
from headrace.loader.device_memory import DeviceMemory, device_name
from headrace.loader.device_pool import PoolRooms
from headrace.loader.options import Options
from headrace.recipes.fingerprint import digest
from headrace.recipes.recipe import Recipe
from headrace.sources import identities

_loaders = itertools.count()


class Sharing:
    """What a recipe's session needs to share."""

    def __init__(
        self,
        recipe: Recipe,
        options: Options,
        *,
        batch_size: int,
        drop_last: bool,
        explicit: bool,
        near: bool = False,
    ) -> None:
        """``explicit``: the job draws for itself, because the order is given. ``near``: the host is told what a
        cluster holds of the data."""
        self._recipe, self._options = recipe, options
        self._batch_size, self._drop_last, self._explicit = batch_size, drop_last, explicit
        self._near = near and not explicit
        self.client = SharedClient(lambda: identities(recipe.source))
        self._number = next(_loaders)

    @property
    def world_size(self) -> int:
        """The ranks of the job."""
        return self._options.world_size

    @property
    def store(self) -> Callable[..., SharedStore]:
        """Makes the shared cache as a worker sees it; called in the worker."""
        return functools.partial(
            _open_store, self.client.dial, self.client.token, environment.host_patience()
        )

    def open(self, layout: RowLayout | None) -> None:
        """Join the host. ``layout``: how rows lie, None where batches are collated as a whole."""
        if self.client.opened:
            return
        recipe, options = self._recipe, self._options
        rows = layout is not None
        # (who takes an augmented image does not know what was done to it, and so not what its mask should show)
        alike = rows and not self._explicit and not recipe.followers
        augmented = self._key(Form.AUGMENTED, layout) if alike else ""
        body = Body.of(layout, targets=recipe.source.targets is not None).nbytes if layout is not None else 0
        self.client.open(
            Join(
                name=job_name(),
                group=self._group(),
                rank=0 if self._explicit else options.rank,
                world_size=1 if self._explicit else options.world_size,
                dataset=recipe.source.fingerprint(),
                label=_label(recipe)[:512],
                samples=len(recipe.source),
                encoded=self._key(Form.ENCODED) if recipe.encoded else "",
                decoded=self._key(Form.DECODED),
                augmented=augmented if body else "",
                body=body,
                budget=options.cache_bytes,
                split=options.split,
                sampling="uniform" if self._explicit else options.sampling,
                eviction=options.eviction,
                batch_size=self._batch_size,
                drop_last=self._drop_last,
                collates=not rows,
                fills=rows,
                near=self._near,
            )
        )

    def device_pool(
        self, device: torch.device, memory: Callable[[torch.device], DeviceMemory]
    ) -> Callable[..., Rooms] | None:
        """Makes room for images in the memory of a device that jobs there share; None: they are not shared."""
        decoded = self._key(Form.DECODED)
        if not decoded or not self._options.gpu_cache:
            return None
        number, label = device_name(device)
        try:
            there = memory(device)
        except OSError as error:
            warnings.warn(f"gpu_cache= is this job's own: {error}", stacklevel=2)
            return None
        return functools.partial(
            PoolRooms,
            self.client.dial,
            self.client.token,
            there,
            key=digest("device", number, self._recipe.source.fingerprint(), decoded),
            label=label,
        )

    def _key(self, form: Form, layout: RowLayout | None = None) -> str:
        try:
            return self._recipe.share_key(form, layout)
        except OptionError as error:
            warnings.warn(f"{form.name.lower()} samples are not shared: {error}", stacklevel=2)
            return ""

    def _group(self) -> str:
        """What the ranks of one job have in common, and nobody else has."""
        if self._options.world_size == 1 or self._explicit:
            return self.client.token
        launch = environment.launch()
        if launch:
            return "|".join([*launch, str(self._number)])[-128:]
        return f"ppid{os.getppid()}|{self._number}"


def _open_store(dial: Dial, token: str, patience: float, *_: Any) -> SharedStore:
    return SharedStore(dial, token, patience)


def job_name() -> str:
    """What a job is called: the same at its next start."""
    argv: Sequence[str] = getattr(sys, "argv", [])
    return (os.path.basename(argv[0]) if argv and argv[0] else "python")[:512]


def _label(recipe: Recipe) -> str:
    return str(getattr(recipe.source, "root", "") or type(recipe.source).__name__)
