"""Ray Train and Ray Tune on a Ray cluster that has a headrace cluster: nobody is told of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
import torch
from ray import train
from ray.train.torch import prepare_data_loader

import headrace as hr
from headrace.cluster import on_ray
from headrace.cluster.node_actor import Terms
from tests.trainers.job_ray import start_ray, train_and_tune

EPOCHS = 2


def _epochs(config: dict[str, Any], name: str, prepares: bool) -> None:
    """Some epochs; what came, and where from, is written down."""
    paths = sorted(Path(config["folder"]).glob("*.jpg"))
    recipe = hr.Recipe(
        source=hr.files(paths, targets=range(len(paths))),
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(24)],
    )
    made = hr.DataLoader(recipe, batch_size=4, shuffle=True, seed=3, num_workers=1)
    loader: Any = prepare_data_loader(made) if prepares else made
    seen = []
    for epoch in range(EPOCHS):
        if prepares:
            loader.sampler.set_epoch(epoch)
        seen.append([number for _, numbers in loader for number in numbers.tolist()])
        if torch.distributed.is_initialized():
            torch.distributed.barrier()
    # (what ``prepare_data_loader`` puts around a loader has none of its methods but iteration)
    pool = getattr(loader, "_dataloader", loader).stats().pool
    found = {"seen": seen, "pool": pool and [pool.nodes, pool.samples, pool.helped]}
    Path(config["out"], f"{name}.json").write_text(json.dumps(found))


def _loop(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    _epochs(config, f"own_ranks-{rank}", False)
    _epochs(config, f"prepared-{rank}", True)
    os.environ["HEADRACE_SHARE"] = "0"
    _epochs(config, f"told_not_to-{rank}", False)


def _trial(config: dict[str, Any]) -> dict[str, float]:
    _epochs(config, f"trial-{config['trial']}", False)
    return {"loss": 0.0}


if __name__ == "__main__":
    config = {"folder": sys.argv[1], "out": sys.argv[2]}
    with start_ray():
        on_ray.start(ray, Terms("64MiB", cpus=1))
        train_and_tune(_loop, _trial, config)
        fetched = sum(one.fetched for one in on_ray.statuses(ray) or [])
        Path(config["out"], "fetched.json").write_text(json.dumps(fetched))
        on_ray.stop(ray)
