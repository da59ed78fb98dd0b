"""Lightning's Fabric: run by each rank."""

from __future__ import annotations

import sys
from pathlib import Path

from lightning.fabric import Fabric

from tests.trainers.data import KINDS, Data, Log, run_cases

WORLD = int(sys.argv[3])
RANK = int(sys.argv[4])
FABRIC = Fabric(accelerator="cpu", devices=WORLD, strategy="ddp" if WORLD > 1 else "auto")
FABRIC.launch()


def setup(data: Data, log: Log) -> None:
    """``setup_dataloaders``, three epochs."""
    loader = FABRIC.setup_dataloaders(data.loader(shuffle=True, seed=5))
    for epoch in range(3):
        for batch in loader:
            log.batch(epoch, batch)
            FABRIC.barrier()  # as training does: nobody is ahead by more than a batch


def own_ranks(data: Data, log: Log) -> None:
    """Without Fabric's sampler: a recipe's loader finds its rank by itself."""
    options = {"shuffle": True}
    if data.kind in ("torch", "dataset"):
        from torch.utils.data import DistributedSampler

        options = {"sampler": DistributedSampler(range(25), WORLD, RANK)}
    loader = FABRIC.setup_dataloaders(data.loader(**options), use_distributed_sampler=False)
    for epoch in range(3):
        for batch in loader:
            log.batch(epoch, batch)
            FABRIC.barrier()


CASES = {case.__name__: case for case in (setup, own_ranks)}

if __name__ == "__main__":
    only = sys.argv[5:] or list(CASES)
    run_cases(
        {name: CASES[name] for name in only}, ("torch", *KINDS), Path(sys.argv[1]), Path(sys.argv[2]), RANK
    )
