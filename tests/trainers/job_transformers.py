"""Hugging Face's Trainer: run by each rank."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.trainers.data import BATCH, KINDS, Data, Log, run_cases

WORLD = int(sys.argv[3])
RANK = int(sys.argv[4])


class Model(torch.nn.Module):
    """Trains nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, *_: Any, **__: Any) -> Any:
        return {"loss": (self.weight**2).sum()}


class Recording(Trainer):
    """Writes down what it gets. ``make``: a loader of ours in place of the Trainer's own."""

    def __init__(self, log: Log, make: Any = None, prepares: bool = True, **options: Any) -> None:
        super().__init__(model=Model(), **options)
        self.given, self.make, self.prepares = log, make, prepares

    def get_train_dataloader(self) -> Any:
        if self.make is None:
            return super().get_train_dataloader()
        loader = self.make()
        return self.accelerator.prepare(loader) if self.prepares else loader

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        values, numbers = (inputs["values"], inputs["numbers"]) if isinstance(inputs, dict) else inputs
        self.given.batch(int(self.state.epoch + 1e-6), (values, numbers))
        return model()["loss"]


def arguments(folder: str, **options: Any) -> TrainingArguments:
    """On CPUs, without anything around it."""
    made: dict[str, Any] = {
        "output_dir": folder, "num_train_epochs": 3, "per_device_train_batch_size": BATCH, "use_cpu": True,
        "report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True,
        "remove_unused_columns": False, "dataloader_pin_memory": False, "seed": 7,
    }  # fmt: skip
    return TrainingArguments(**{**made, **options})


def collate(samples: list[Any]) -> dict[str, Any]:
    """As the Trainer's own loader wants it."""
    values, numbers = zip(*samples, strict=True)
    stacked = torch.stack([torch.as_tensor(value) for value in values])
    return {"values": stacked, "numbers": torch.tensor(numbers)}


def dataset(data: Data, log: Log) -> None:
    """A loader's dataset is the Trainer's ``train_dataset``; it makes the loader."""
    with tempfile.TemporaryDirectory() as folder:
        whole = data.loader(shuffle=True).dataset
        Recording(log, args=arguments(folder), train_dataset=whole, data_collator=collate).train()


def prepared(data: Data, log: Log) -> None:
    """``get_train_dataloader`` makes the loader and prepares it, as the Trainer's own does."""
    with tempfile.TemporaryDirectory() as folder:
        make = lambda: data.loader(shuffle=True, seed=5)  # noqa: E731
        Recording(log, make, args=arguments(folder)).train()


def own_ranks(data: Data, log: Log) -> None:
    """``get_train_dataloader`` returns the loader as it is; a recipe's finds its rank by itself."""

    def make() -> Any:
        if data.kind in ("torch", "dataset"):
            return data.loader(sampler=torch.utils.data.DistributedSampler(range(25), WORLD, RANK))
        return data.loader(shuffle=True, seed=5)

    with tempfile.TemporaryDirectory() as folder:
        Recording(log, make, False, args=arguments(folder)).train()


class StopAt(TrainerCallback):
    """Saves and ends after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def resume(data: Data, log: Log) -> None:
    """Stopped in the middle of the second epoch; a new Trainer goes on from the checkpoint."""
    make = lambda: data.loader(shuffle=True, seed=5)  # noqa: E731
    steps = 7 if WORLD == 1 else 4
    folder = str(Path(sys.argv[2]) / "checkpoints" / data.kind)
    Recording(log, make, args=arguments(folder), callbacks=[StopAt(steps + 2)]).train()
    Recording(log, make, args=arguments(folder)).train(
        resume_from_checkpoint=f"{folder}/checkpoint-{steps + 2}"
    )


CASES = {case.__name__: case for case in (dataset, prepared, own_ranks, resume)}

if __name__ == "__main__":
    only = sys.argv[5:] or list(CASES)
    run_cases(
        {name: CASES[name] for name in only}, ("torch", *KINDS), Path(sys.argv[1]), Path(sys.argv[2]), RANK
    )
