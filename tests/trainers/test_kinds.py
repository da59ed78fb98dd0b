"""Views, mixed batches, masks and boxes inside trainers: every sample once an epoch, new crops in each."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import headrace as hr
from tests.loader import pictures
from tests.trainers import job_kinds
from tests.trainers.jobs import run_job

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


PACKAGES = {
    "accelerate": "accelerate",
    "transformers": "transformers",
    "lightning": "lightning",
    "ray": "ray",
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks were given by each trainer."""
    for package in PACKAGES.values():
        pytest.importorskip(package)
    folder, out = tmp_path_factory.mktemp("images"), tmp_path_factory.mktemp("out")
    for job in ("kinds", "kinds_ray"):
        with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
            run_job(job, 2, folder, out, Path(runtime))
    return out


@pytest.mark.parametrize("kind", pictures.KINDS)
@pytest.mark.parametrize("how", [*job_kinds.HOWS, "ray"])
def test_two_ranks(ranks: Path, how: str, kind: str, tmp_path: Path) -> None:
    """Together they get every sample once an epoch, with the crops that one rank alone gets for the same seed."""
    parts = [json.loads((ranks / f"{how}-{kind}-{rank}.json").read_text()) for rank in range(2)]
    for epochs in parts:
        assert [len(epoch) for epoch in epochs] == [COUNT // 2] * EPOCHS
    both = [sorted(one + two) for one, two in zip(*parts, strict=True)]
    if kind == "mixed":  # (with whom a sample is mixed depends on its batch)
        assert len({value for epoch in both for value in epoch}) == EPOCHS * COUNT
        return
    alone: job_kinds.Given = [[] for _ in range(EPOCHS)]
    with job_kinds.open_loader(kind, tmp_path, num_workers=0) as loader:
        job_kinds.own_ranks(loader, alone)
    assert both == [sorted(epoch) for epoch in alone]
