"""Nobody but torch: run by each rank that torchrun starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch.utils.data import DistributedSampler

from tests.trainers.data import KINDS, Data, Log, run_cases

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def own_ranks(data: Data, log: Log) -> None:
    """A recipe's loader finds its rank; over a dataset it is given, as torch has no such thing."""
    options = {"shuffle": True}
    if data.kind == "torch":
        options = {"sampler": DistributedSampler(range(25), WORLD, RANK)}
    elif data.kind == "dataset":
        options.update(seed=5, rank=RANK, world_size=WORLD)
    loader = data.loader(**options)
    for epoch in range(3):
        if data.kind == "torch":
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            log.batch(epoch, batch)
            torch.distributed.barrier()  # as training does: nobody is ahead by more than a batch
    log.notes["workers"] = loader.num_workers


def sampler(data: Data, log: Log) -> None:
    """torch's DistributedSampler, told the epoch as torch's notes advise."""
    loader = data.loader(sampler=DistributedSampler(range(25), WORLD, RANK))
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            log.batch(epoch, batch)


def resume(data: Data, log: Log) -> None:
    """A state in the middle of the second epoch, loaded into a new loader."""
    order = {} if data.kind == "torch" else {"seed": 5}
    options = {"shuffle": True, **order}
    if data.kind in ("torch", "dataset"):
        options = {"sampler": DistributedSampler(range(25), WORLD, RANK), **order}
    loader = data.loader(**options)
    state = None
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            log.batch(epoch, batch)
            torch.distributed.barrier()  # as training does: nobody leaves while another waits for its batch
            if epoch == 1 and step == 1 and data.kind != "torch":
                state = loader.state_dict()
                break
    if state is not None:
        loader.close()
        again = data.loader(**options)
        again.load_state_dict(state)
        for batch in again:
            log.batch(1, batch)
            torch.distributed.barrier()


CASES = {case.__name__: case for case in (own_ranks, sampler, resume)}

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    only = sys.argv[5:] or list(CASES)
    run_cases(
        {name: CASES[name] for name in only}, ("torch", *KINDS), Path(sys.argv[1]), Path(sys.argv[2]), RANK
    )
    torch.distributed.destroy_process_group()
