"""Views, mixed batches, masks and boxes inside trainers: every sample once an epoch, new crops in each."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import headrace as hr
from tests.loader import pictures

pytestmark = pytest.mark.trainers

COUNT, BATCH, EPOCHS = 80, 8, 2
Seen = tuple[int, list[float]]
"""Of a batch: its samples, and a sum of each of its tensors."""


def seen(batch: Any) -> Seen:
    tensors = pictures.flat(batch)
    return len(tensors[0]), [float(tensor.double().sum()) for tensor in tensors]


def check(epochs: list[list[Seen]]) -> None:
    assert [sum(count for count, _ in epoch) for epoch in epochs] == [COUNT] * EPOCHS
    assert len({sums[0] for epoch in epochs for _, sums in epoch}) == EPOCHS * COUNT // BATCH, (
        "the same crops"
    )


@pytest.mark.parametrize("kind", pictures.KINDS)
def test_accelerate(kind: str, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    recipe = pictures.recipe(kind, tmp_path)
    options: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 5}
    prepared = accelerate.Accelerator(cpu=True).prepare(hr.DataLoader(recipe, num_workers=2, **options))
    found = [[seen(batch) for batch in prepared] for _ in range(EPOCHS)]
    check(found)
    alone = hr.DataLoader(recipe, num_workers=0, **options)
    assert found == [[seen(batch) for batch in alone] for _ in range(EPOCHS)]


@pytest.mark.parametrize("kind", pictures.KINDS)
def test_lightning(kind: str, tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    found: list[list[Seen]] = [[] for _ in range(EPOCHS)]

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            found[self.current_epoch].append(seen(batch))
            return self.weight.sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet: Iterable[str] = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(max_epochs=EPOCHS, accelerator="cpu", **dict.fromkeys(quiet, False))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(
            Module(),
            hr.DataLoader(pictures.recipe(kind, tmp_path), batch_size=BATCH, shuffle=True, num_workers=2),
        )
    check(found)
