"""Pinned batches and copies to the GPU, where there is one."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.loader.pinning import pin_value
from tests.loader import pictures

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def decode(blob):
    return np.frombuffer(blob, np.uint8)[:1024].reshape(4, 256).copy()


def recipe(size=64):
    return hr.Recipe(hr.synthetic.source(size, bytes_per_sample=4096, classes=10), decode=decode)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_recipe_is_pinned(workers):
    plain = [images.clone() for images, _ in hr.DataLoader(recipe(), batch_size=8, num_workers=workers)]
    with hr.DataLoader(recipe(), batch_size=8, num_workers=workers, pin_memory=True) as loader:
        for _ in range(3):
            for (images, labels), expected in zip(loader, plain, strict=True):
                assert images.is_pinned() and labels.is_pinned()
                assert torch.equal(images.to("cuda", non_blocking=True).cpu(), expected)


class Tensors(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"x": torch.full((3, 64), float(index)), "y": index}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_is_pinned(workers):
    with hr.DataLoader(Tensors(), batch_size=4, num_workers=workers, pin_memory=True) as loader:
        for number, batch in enumerate(loader):
            assert batch["x"].is_pinned() and batch["y"].is_pinned()
            assert batch["x"].to("cuda", non_blocking=True)[:, 0, 0].tolist() == [
                number * 4.0 + i for i in range(4)
            ]


def test_kept_batches_stay_pinned_and_whole():
    with hr.DataLoader(
        Tensors(), batch_size=4, num_workers=2, pin_memory=True, persistent_workers=True
    ) as loader:
        kept = [batch["x"] for _ in range(5) for batch in loader]
        assert all(x.is_pinned() for x in kept)
        assert [int(x[0, 0, 0]) for x in kept] == [number * 4 for number in range(10)] * 5
    assert [int(x[0, 0, 0]) for x in kept] == [number * 4 for number in range(10)] * 5


# -- a GPU that lags -------------------------------------------------------------------------------------

BATCHES = int(os.environ.get("HEADRACE_LAG_BATCHES", "400"))
"""How many batches each of the following tests hands to a GPU that is behind."""
LAG = 4_000_000
"""Clock cycles that the GPU spends before each copy: two milliseconds, more than the loop takes for a batch."""


class Pages(torch.utils.data.Dataset):
    """Samples of 256 KiB that are full of their index."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((65536,), float(index)), index


class PageStream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from (Pages()[index] for index in range(64))


def full_page(blob):
    return np.full((65536,), blob[0], np.float32)


def pages_recipe(collate=None):
    source = hr.synthetic.source(64, bytes_per_sample=4096, classes=10)
    return hr.Recipe(source, decode=full_page, collate=collate)


KINDS = {
    "recipe": pages_recipe,
    "recipe, collated": lambda: pages_recipe(torch.utils.data.default_collate),
    "dataset": Pages,
    "stream": PageStream,
}


@contextlib.contextmanager
def chosen(stream):
    """The stream on which a user copies, and the work that lies before the copy."""
    if stream == "default":
        yield
        return
    if stream == "external":
        own = torch.cuda.Stream()
        side = torch.cuda.ExternalStream(own.cuda_stream)
    else:
        side = torch.cuda.Stream(priority=-1 if stream == "urgent" else 0)
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream().wait_stream(side)


@pytest.mark.parametrize("stream", ["default", "side", "urgent", "external"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pin", [True, False])
def test_a_lagging_gpu_gets_every_batch_as_it_was(kind, workers, stream, pin):
    make = {"batch_size": 8, "num_workers": workers, "persistent_workers": True if workers else None}
    if kind == "stream" and workers:
        make["num_workers"] = 1  # each worker would read the whole stream
    expected = torch.stack([x.clone() for x, _ in hr.DataLoader(KINDS[kind](), **make)]).cuda()
    assert len({float(x[0, 0]) for x in expected}) > 4, "batches must differ, or nothing would show"
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    done = 0
    with hr.DataLoader(KINDS[kind](), pin_memory=pin, **make) as loader, chosen(stream):
        while done < BATCHES:
            for number, (x, labels) in enumerate(loader):
                torch.cuda._sleep(LAG)
                there = x.cuda(non_blocking=True)
                del x, labels
                wrong += (there != expected[number]).any()
                done += 1
    torch.cuda.synchronize()
    assert int(wrong) == 0, f"{int(wrong)} of {done} batches were written over before the GPU had them"


EPOCHS = max(1, BATCHES // 40)


@pytest.mark.parametrize("stream", ["default", "side"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", pictures.KINDS)
@pytest.mark.parametrize("pin", [True, False])
def test_so_it_does_of_views_and_mixed_batches_and_what_follows(tmp_path, kind, workers, stream, pin):
    recipe = pictures.recipe(kind, tmp_path)
    make = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": workers}
    with hr.DataLoader(recipe, **make) as loader:
        expected = [[t.cuda() for t in pictures.flat(batch)] for _ in range(EPOCHS) for batch in loader]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    left = iter(expected)
    with hr.DataLoader(recipe, pin_memory=pin, **make) as loader, chosen(stream):
        for _ in range(EPOCHS):
            for batch in loader:
                torch.cuda._sleep(LAG)
                there = [t.cuda(non_blocking=True) for t in pictures.flat(batch)]
                del batch
                for one, other in zip(there, next(left), strict=True):
                    wrong += (one != other).any()
    torch.cuda.synchronize()
    assert next(left, None) is None and int(wrong) == 0


def test_layouts_stay_as_they_are():
    given = {
        "planes": torch.rand(4, 3, 300, 300),
        "last": torch.rand(4, 3, 300, 300).to(memory_format=torch.channels_last),
        "turned": torch.rand(600, 900).t(),
        "half": torch.rand(1000, 1000).to(torch.bfloat16),
        "flags": (torch.rand(2000, 1000) > 0.5, [torch.tensor(3)]),
    }
    found = pin_value(given)
    for name in ("planes", "last", "turned", "half"):
        assert found[name].is_pinned() and found[name].stride() == given[name].stride()
        assert torch.equal(found[name], given[name])
    assert type(found["flags"]) is tuple and torch.equal(found["flags"][0], given["flags"][0])
    assert found["flags"][1][0].is_pinned()


@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_memory_is_used_again(workers):
    """It is torch's, and goes back to torch: loading for long does not take more and more of it."""
    stats = getattr(torch.cuda, "host_memory_stats", None)
    if stats is None:
        pytest.skip("this torch does not count its pinned memory")
    taken = []
    with hr.DataLoader(Pages(), batch_size=8, num_workers=workers, pin_memory=True) as loader:
        for _ in range(6):
            for x, _ in loader:
                x.cuda(non_blocking=True)
            torch.cuda.synchronize()
            taken.append(stats()["allocated_bytes.current"])
    assert taken[-1] <= taken[1]
