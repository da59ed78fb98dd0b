"""What the tests of recipes share: a source in memory, images, and orders."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import simplejpeg

from headrace.core.forms import Form
from headrace.core.layout import Field
from headrace.recipes import Program, Recipe, Work, compile_recipe


class MemorySource:
    """Samples that are given as they are."""

    encoded = True

    def __init__(self, blobs: Sequence[bytes], targets: Any = None) -> None:
        self.blobs = list(blobs)
        self.targets = targets

    def __len__(self) -> int:
        return len(self.blobs)

    def read_many(self, indices: Any) -> list[Any]:
        return [self.blobs[int(index)] for index in indices]

    def name(self, index: int) -> str:
        return f"memory:{index}"

    identity = name

    def fingerprint(self) -> str:
        return hashlib.sha256(b"".join(self.blobs)).hexdigest()


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A smooth colourful image, different for each seed, so that resampling and JPEG lose little."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 5, 3), np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def jpeg(image: np.ndarray, quality: int = 92) -> bytes:
    return simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality, colorspace="RGB")


def png(image: np.ndarray) -> bytes:
    return cv2.imencode(".png", image[..., ::-1] if image.shape[2] == 3 else image)[1].tobytes()


def reserve_all(arrays: Any) -> list[np.ndarray]:
    return [np.empty(shape, dtype) for shape, dtype in arrays]


def reserve_none(arrays: Any) -> list[None]:
    return [None] * len(arrays)


def order(
    source: Any,
    indices: Sequence[int],
    *,
    cached: dict[int, Any] | None = None,
    keep: bool | Sequence[bool] = False,
    seed: int = 3,
    epoch: int = 0,
    reserve: Any = reserve_all,
) -> Work:
    """An order for the given samples; ``cached`` holds the decoded forms of some of them."""
    cached = cached or {}
    blobs = source.read_many(indices)
    return Work(
        indices=np.asarray(indices, np.int64),
        seed=seed,
        epoch=epoch,
        forms=np.array([Form.DECODED if i in cached else Form.ENCODED for i in indices], np.uint8),
        inputs=[cached.get(i, blob) for i, blob in zip(indices, blobs, strict=True)],
        keep=np.broadcast_to(np.asarray(keep), (len(indices),)).copy(),
        reserve=reserve,
    )


def memory(fields: Sequence[Field], rows: int) -> list[np.ndarray]:
    """Row memory that is full of garbage, as slots are."""
    out = []
    for field in fields:
        block = np.empty((rows, *field.shape), field.storage_dtype)
        block.view(np.uint8).reshape(-1)[:] = 0xAB
        out.append(block)
    return out


def run(program: Program, work: Work, layout: Any = None) -> list[np.ndarray]:
    layout = layout or program.layout
    assert layout is not None
    out = memory(layout.fields, len(work.indices))
    program.run(work, out)
    return out


def rows(recipe: Recipe, indices: Sequence[int], *, caches: bool = False, **options: Any) -> list[np.ndarray]:
    """Rows of a recipe, none of which may fail."""
    work = order(recipe.source, indices, **options)
    out = run(compile_recipe(recipe, caches_decoded=caches), work)
    assert not work.faults, work.faults
    return out


def read_only(value: Any) -> Any:
    """A cached value as the cache hands it out."""
    if isinstance(value, np.ndarray):
        value = value.copy()
        value.flags.writeable = False
        return value
    if isinstance(value, dict):
        return {name: read_only(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(read_only(item) for item in value)
    return value
