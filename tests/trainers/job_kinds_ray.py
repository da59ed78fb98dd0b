"""As job_kinds.py, by Ray Train: one driver, whose workers Ray starts."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from ray import train
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader
from ray.train.v2.api.config import RunConfig, ScalingConfig

from tests.trainers.job_kinds import Given, run, seen
from tests.trainers.job_ray import start_ray


def prepared(loader: Any, given: Given) -> None:
    """``prepare_data_loader``; the sampler is told the epoch, as Ray's guide says."""
    made = prepare_data_loader(loader, move_to_device=True)
    for number, epoch in enumerate(given):
        if hasattr(made.sampler, "set_epoch"):
            made.sampler.set_epoch(number)
        for batch in made:
            epoch += seen(batch)


def _loop(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    run({"ray": prepared}, Path(config["folder"]), Path(config["out"]), rank)


if __name__ == "__main__":
    with start_ray(), tempfile.TemporaryDirectory() as storage:
        TorchTrainer(
            _loop,
            train_loop_config={"folder": sys.argv[1], "out": sys.argv[2]},
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
            run_config=RunConfig(storage_path=storage),
        ).fit()
