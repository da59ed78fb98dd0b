"""Pinned batches and copies to the GPU, where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headrace as hr

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def decode(blob):
    return np.frombuffer(blob, np.uint8)[:1024].reshape(4, 256).copy()


def recipe(size=64):
    return hr.Recipe(hr.synthetic.source(size, bytes_per_sample=4096, classes=10), decode=decode)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_recipe_is_pinned_in_place(workers):
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
