"""Datasets of Hugging Face in a loader with a cache, where the package is installed."""

from __future__ import annotations

import io
import os
import pickle
import random
import re
import struct
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin
from torch.utils.data import DataLoader

import headrace as hr
from headrace.core.forms import Form
from headrace.loader.hugging_face import recognise_hf
from headrace.loader.native import look_for
from tests.recipes.helpers import picture

datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets are not installed")

FEATURES = datasets.Features(
    {"text": datasets.Value("string"), "image": datasets.Image(), "label": datasets.ClassLabel(num_classes=4)}
)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def blobs() -> list[bytes]:
    """Images of which more matters than their pixels."""
    photo = Image.fromarray(picture(30, 40, 1))
    turned = Image.Exif()
    turned[0x0112] = 6
    noted = PngImagePlugin.PngInfo()
    noted.add_itxt("comment", "what somebody wrote")
    block = b"Photoshop 3.0\0" + b"8BIM" + struct.pack(">HHI", 0x0404, 0, 4) + b"what"
    edited = b"\xff\xed" + struct.pack(">H", 2 + len(block)) + block
    return [
        encoded(photo, "JPEG", quality=90, dpi=(72, 72), extra=edited),
        encoded(photo.convert("L"), "JPEG", icc_profile=b"as if"),
        encoded(photo, "JPEG", exif=turned),
        encoded(photo.convert("CMYK"), "JPEG"),
        encoded(photo.convert("RGBA"), "PNG"),
        encoded(photo.convert("P"), "PNG"),
        encoded(photo, "PNG", transparency=(1, 2, 3)),
        encoded(photo, "PNG", pnginfo=noted),
        encoded(photo, "WEBP", lossless=True),
    ]


KEPT = 6
"""Those that a cache can hold: not CMYK, a palette, or text in a class of Pillow's own."""


def dataset() -> Any:
    data = blobs()
    rows = {
        "text": [f"number {number}" for number in range(len(data))],
        "image": [{"bytes": blob, "path": None} for blob in data],
        "label": [number % 4 for number in range(len(data))],
    }
    return datasets.Dataset.from_dict(rows, features=FEATURES)


def to_tensors(batch: Any) -> Any:
    """As most write it; and it looks at the batch as a whole."""
    assert list(batch) == ["text", "image", "label"] and isinstance(batch["image"], list)
    small = [np.array(image.convert("RGB").resize((8, 8))) for image in batch["image"]]
    batch["pixel_values"] = [torch.from_numpy(pixels) for pixels in small]
    batch["together"] = [len(small)] * len(small)
    del batch["image"]
    return batch


def seen(samples: Any) -> Any:
    return [
        {
            name: (
                value.mode,
                value.size,
                value.tobytes(),
                value.info,
                value.format,
                value.convert("RGBA").tobytes(),
            )
            if isinstance(value, Image.Image)
            else value
            for name, value in sample.items()
        }
        for sample in samples
    ], os.getpid()


VIEWS: dict[str, Any] = {
    "whole": lambda d: d,
    "shuffled": lambda d: d.shuffle(seed=3),
    "only images": lambda d: d.select_columns(["image"]),
    "of one mode": lambda d: d.cast_column("image", datasets.Image(mode="RGB")),
}


@pytest.mark.parametrize("view", VIEWS)
def test_samples_are_those_of_the_dataset(view: str) -> None:
    data = VIEWS[view](dataset())
    want = list(DataLoader(data, batch_size=4, collate_fn=seen))
    assert any("photoshop" in sample["image"][3] for batch, _ in want for sample in batch)
    workers = 1 if view == "whole" else 0
    with hr.DataLoader(data, batch_size=4, collate_fn=seen, num_workers=workers, cache="8MiB") as loader:
        for _ in range(3):
            for (ours, pid), (theirs, here) in zip(loader, want, strict=True):
                assert ours == theirs and [list(sample) for sample in ours] == [list(s) for s in theirs]
                assert (pid == here) == (not workers)
        stats = loader.stats()
    assert stats.cache["decoded"].samples == (8 if view == "of one mode" else KEPT)
    assert not stats.decodes and stats.own_code[-1] == "seen: the collate_fn"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_gets_whole_batches(workers: int) -> None:
    data = dataset().with_transform(to_tensors)
    want = list(DataLoader(data, batch_size=4))
    with hr.DataLoader(data, batch_size=4, num_workers=workers, cache="8MiB") as loader:
        for _ in range(3):
            for ours, theirs in zip(loader, want, strict=True):
                assert list(ours) == list(theirs) == ["text", "label", "pixel_values", "together"]
                assert ours["text"] == theirs["text"]
                for name in ("label", "pixel_values", "together"):
                    assert torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype
        stats = loader.stats()
    assert stats.own_code == ("decoding: by the dataset, and cached", "to_tensors: the dataset's transform")
    assert stats.cache["decoded"].samples == KEPT and stats.cache["decoded"].hits >= KEPT
    assert "headrace.hf(dataset)" in str(stats)
    single = hr.DataLoader(data, batch_size=None, cache="8MiB", num_workers=0)
    for ours, theirs in zip(single, DataLoader(data, batch_size=None), strict=True):
        assert ours["together"] == theirs["together"] == 1 and type(ours["label"]) is type(theirs["label"])


def test_what_a_transform_draws_follows_from_the_seed() -> None:
    def draw(batch: Any) -> Any:
        return {"drawn": [(torch.rand(()).item(), random.random()) for _ in batch["image"]]}

    data = dataset().with_transform(draw)
    epochs = []
    for workers in (0, 1):
        with hr.DataLoader(
            data, batch_size=4, shuffle=True, seed=5, num_workers=workers, cache="8MiB", collate_fn=list
        ) as loader:
            epochs.append([list(loader), list(loader)])
    assert epochs[0] == epochs[1] and epochs[0][0] != epochs[0][1]


def only(images: list[Any]) -> Any:
    return datasets.Dataset.from_dict({"image": images}, datasets.Features({"image": datasets.Image()}))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.with_format("torch"), "with_format('torch')"),
        (lambda d: d.with_format(None, columns=["image"]), "only some of its columns"),
        (lambda d: d.add_column("mask", d.data.column("image").to_pylist(), feature=datasets.Image()), "2 columns"),
        (lambda d: only([None]), "no image"),
        (lambda d: only([{"path": "hf://a/b.jpg", "bytes": None}]), "cannot be read without it"),
    ],
)  # fmt: skip
def test_what_is_not_known_for_sure_is_left_alone(change: Any, why: str) -> None:
    data = change(dataset())
    found = recognise_hf(data, None, batched=True)
    assert isinstance(found, str) and why in found
    left = look_for(data, None, native=True, batched=True, workers=True, keeps=True)
    assert left.recipe is None and why in left.own[0]
    with pytest.raises(hr.OptionError, match=f"cache= needs a recipe.*{re.escape(why)}"):
        hr.DataLoader(data, cache="8MiB")


def test_nothing_is_said_of_datasets_without_images() -> None:
    for data in (
        dataset().remove_columns(["image"]),
        dataset().cast_column("image", datasets.Image(decode=False)),
    ):
        for keeps in (True, False):
            said = look_for(data, None, native=True, batched=True, workers=True, keeps=keeps)
            assert said.recipe is None and not said.own and not said.hint


def test_without_a_cache_it_is_the_datasets_own_affair() -> None:
    data = dataset().with_transform(to_tensors)
    loader = hr.DataLoader(data, batch_size=4, num_workers=1)
    assert loader._spec.data.recipe is None and "hf(dataset)" in loader.stats().hint
    found = recognise_hf(data, None, batched=True)
    assert not isinstance(found, str)
    assert found.recipe.share_key(Form.DECODED) == recognise_hf(dataset(), None, batched=True)[0].share_key(
        Form.DECODED
    )
    other = pickle.loads(pickle.dumps(found.recipe.source))
    assert other.targets.tolist() == list(range(9)), "workers that are spawned number samples, too"
