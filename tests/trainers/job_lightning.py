"""Lightning's Trainer: run by each rank."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.trainers.data import KINDS, Data, Log, run_cases

WORLD = int(sys.argv[3])
RANK = int(sys.argv[4])


class Model(pl.LightningModule):
    """Trains nothing, and writes down what it gets."""

    def __init__(self, log: Log, data: Data | None = None, **options: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.given, self.data, self.options = log, data, options

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.given.batch(self.current_epoch, batch)
        return self.weight.sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if not self.trainer.sanity_checking:
            self.given.batch(100 + self.current_epoch, batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Any:
        self.given.batch(0, batch)
        return batch[1]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self) -> Any:
        assert self.data is not None
        return self.data.loader(**self.options)


def trainer(**options: Any) -> pl.Trainer:
    """On CPUs, without anything around it."""
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": sys.argv[2],
    }
    if "callbacks" not in options:
        quiet["enable_checkpointing"] = False
    strategy = "ddp" if WORLD > 1 else "auto"
    return pl.Trainer(accelerator="cpu", devices=WORLD, strategy=strategy, **{**quiet, **options})


def argument(data: Data, log: Log) -> None:
    """The loader is an argument of fit."""
    trainer(max_epochs=3).fit(Model(log), data.loader(shuffle=True, seed=5))


def hook(data: Data, log: Log) -> None:
    """The loader is made in the module's hook, without a seed."""
    trainer(max_epochs=3).fit(Model(log, data, shuffle=True))


def own_ranks(data: Data, log: Log) -> None:
    """Lightning leaves the loader alone; a recipe's finds its rank by itself."""
    options = {"shuffle": True, "seed": 5}
    if data.kind in ("torch", "dataset"):
        options = {"sampler": torch.utils.data.DistributedSampler(range(25), WORLD, RANK)}
    trainer(max_epochs=3, use_distributed_sampler=False).fit(Model(log), data.loader(**options))


def validation(data: Data, log: Log) -> None:
    """A second loader in order, each epoch."""
    trainer(max_epochs=2).fit(Model(log), data.loader(shuffle=True), data.loader())


class Stop(Exception):
    """The job ends here."""


class StopAt(pl.Callback):
    """Saves and ends at a step."""

    def __init__(self, step: int, path: str) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            raise Stop


def _resume(data: Data, log: Log, callback: Any, checkpoint: Path, epochs: int) -> None:
    options = {"shuffle": True, "seed": 5}
    first = Log(data)
    with contextlib.suppress(Stop):
        trainer(max_epochs=epochs, callbacks=[callback]).fit(Model(first), data.loader(**options))
    log.epochs = first.epochs
    again = trainer(max_epochs=3, callbacks=[ModelCheckpoint(dirpath=checkpoint.parent / "again")])
    again.fit(Model(log), data.loader(**options), ckpt_path=str(checkpoint))


def resume_mid_epoch(data: Data, log: Log) -> None:
    """Saved in the middle of the second epoch, and gone on with in a new loader."""
    steps = -(-25 // 4) if WORLD == 1 else -(-13 // 4)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(shared(folder)) / "mid.ckpt"
        _resume(data, log, StopAt(steps + 2, str(place)), place, 3)


def resume_end_of_epoch(data: Data, log: Log) -> None:
    """Saved at the end of the second epoch, and gone on with in a new loader."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(shared(folder))
        saving = ModelCheckpoint(dirpath=root, filename="end", every_n_epochs=2, save_on_train_epoch_end=True)
        _resume(data, log, saving, root / "end.ckpt", 2)


def shared(folder: str) -> str:
    """The first rank's folder, for all."""
    if WORLD == 1:
        return folder
    if not torch.distributed.is_initialized():
        # (a Trainer makes the group; before the first one there is none)
        return str(Path(sys.argv[2]) / "checkpoints")
    found = [folder]
    torch.distributed.broadcast_object_list(found, 0)
    return found[0]


def predict(data: Data, log: Log) -> None:
    """Every sample, each once: Lightning puts in a sampler that does not repeat."""
    trainer().predict(Model(log), data.loader())


CASES = {
    case.__name__: case
    for case in (argument, hook, own_ranks, validation, resume_mid_epoch, resume_end_of_epoch, predict)
}

if __name__ == "__main__":
    only = sys.argv[5:] or list(CASES)
    run_cases(
        {name: CASES[name] for name in only}, ("torch", *KINDS), Path(sys.argv[1]), Path(sys.argv[2]), RANK
    )
