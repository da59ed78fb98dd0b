"""Views, mixed batches, masks and boxes in several ranks: each runs all trainers, and writes down what it was given.

Usage: FOLDER OUT WORLD RANK, where FOLDER is for the images, of which each rank has its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import headrace as hr
from tests.loader import pictures

BATCH, EPOCHS, SEED = 8, 2, 5
Given = list[list[float]]
"""By epoch: of each sample a sum of its (first) image."""


def open_loader(kind: str, folder: Path, **options: Any) -> Any:
    """The loader that all trainers get."""
    recipe = pictures.recipe(kind, folder)
    return hr.DataLoader(recipe, batch_size=BATCH, shuffle=True, seed=SEED, **{"num_workers": 1, **options})


def seen(batch: Any) -> list[float]:
    """Of each sample a sum of its image."""
    image = pictures.flat(batch)[0]
    return [float(one.double().sum()) for one in image]


def own_ranks(loader: Any, given: Given) -> None:
    """As it is."""
    for epoch in given:
        for batch in loader:
            epoch += seen(batch)


def accelerate(loader: Any, given: Given) -> None:
    """Prepared by Accelerate."""
    from accelerate import Accelerator

    own_ranks(Accelerator(cpu=True).prepare(loader), given)


def transformers(loader: Any, given: Given) -> None:
    """In the place of the Trainer's own, prepared as that is."""
    from transformers import Trainer, TrainingArguments

    class Recording(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return self.accelerator.prepare(loader)

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            given[int(self.state.epoch + 1e-6)].extend(seen(inputs))
            return model(torch.zeros(1, 1)).sum()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, num_train_epochs=EPOCHS, use_cpu=True, report_to=[], save_strategy="no",
            logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        Recording(model=torch.nn.Linear(1, 1), args=arguments).train()


def lightning(loader: Any, given: Given) -> None:
    """Trainer.fit with DDP."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            given[self.current_epoch].extend(seen(batch))
            return self.weight.sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = pl.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", strategy="ddp", devices=int(sys.argv[3]), **dict.fromkeys(quiet, False)
    )  # fmt: skip
    trainer.fit(Module(), loader)


HOWS: dict[str, Callable[[Any, Given], None]] = {
    "own_ranks": own_ranks,
    "accelerate": accelerate,
    "transformers": transformers,
    "lightning": lightning,
}


def run(hows: dict[str, Callable[[Any, Given], None]], folder: Path, out: Path, rank: int) -> None:
    """All kinds in all ways."""
    own = folder / str(rank)
    own.mkdir(exist_ok=True)
    for how, train in hows.items():
        for kind in pictures.KINDS:
            given: Given = [[] for _ in range(EPOCHS)]
            train(open_loader(kind, own), given)
            (out / f"{how}-{kind}-{rank}.json").write_text(json.dumps(given))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo")
    run(HOWS, Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[4]))
    torch.distributed.destroy_process_group()
