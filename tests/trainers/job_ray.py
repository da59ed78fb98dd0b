"""Ray Train and Ray Tune: one driver, whose workers Ray starts."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import torch
from ray import train, tune
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader
from ray.train.v2.api.config import RunConfig, ScalingConfig

from tests.patient_ray import once_more
from tests.trainers.data import KINDS, Data, Log, run_cases

FOLDER, OUT = Path(sys.argv[1]), Path(sys.argv[2])


def prepare(data: Data, log: Log) -> None:
    """``prepare_data_loader``, three epochs; the sampler is told the epoch, as Ray's guide says."""
    loader = prepare_data_loader(data.loader(shuffle=True), move_to_device=True)
    for epoch in range(3):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            log.batch(epoch, batch)
            torch.distributed.barrier()  # as training does: nobody is ahead by more than a batch


def own_ranks(data: Data, log: Log) -> None:
    """The loader as it is; a recipe's finds its rank by itself."""
    options: dict[str, Any] = {"shuffle": True}
    if data.kind in ("torch", "dataset"):
        options = {"sampler": torch.utils.data.DistributedSampler(range(25))}
    loader = data.loader(**options)
    for epoch in range(3):
        for batch in loader:
            log.batch(epoch, batch)
            torch.distributed.barrier()


def _loop(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    cases = {"prepare": prepare, "own_ranks": own_ranks}
    run_cases(cases, ("torch", *KINDS), Path(config["folder"]), Path(config["out"]), rank)


def _trial(config: dict[str, Any]) -> dict[str, float]:
    """One trial of a search: a job of its own, beside the other."""

    def alone(data: Data, log: Log) -> None:
        loader = data.loader(shuffle=True)
        for epoch in range(3):
            for batch in loader:
                log.batch(epoch, batch)

    name = f"tune_{config['trial']}"
    run_cases({name: alone}, ("torch", *KINDS), Path(config["folder"]), Path(config["out"]), 0)
    return {"loss": 0.0}


@contextlib.contextmanager
def start_ray() -> Iterator[None]:
    """A small cluster on this machine, whose workers know what tests set."""
    kept = ("HEADRACE_RUNTIME_DIR", "HEADRACE_PROFILES", "GLOO_SOCKET_IFNAME", "PYTHONPATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    once_more(
        lambda: ray.init(
            num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment},
            object_store_memory=100 << 20,
        )
    )  # fmt: skip
    try:
        yield
    finally:
        ray.shutdown()


def train_and_tune(loop: Any, trial: Any, config: dict[str, Any]) -> None:
    """Two workers of Ray Train's, then two trials of Ray Tune's."""
    with tempfile.TemporaryDirectory() as storage:
        TorchTrainer(
            loop,
            train_loop_config=config,
            torch_config=TorchConfig(backend="gloo"),
            scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
            run_config=RunConfig(storage_path=storage),
        ).fit()
        space = {**config, "trial": tune.grid_search([0, 1])}
        tune.Tuner(
            tune.with_resources(trial, {"cpu": 1}), param_space=space,
            run_config=tune.RunConfig(storage_path=storage, verbose=0),
        ).fit()  # fmt: skip


if __name__ == "__main__":
    config = {"folder": str(FOLDER), "out": str(OUT)}
    with start_ray():
        train_and_tune(_loop, _trial, config)
