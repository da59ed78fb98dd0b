"""Hugging Face's Accelerate: run by each rank."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration, set_seed

from tests.trainers.data import KINDS, Data, Log, run_cases

WORLD = int(sys.argv[3])
RANK = int(sys.argv[4])


def accelerator(**options: Any) -> Accelerator:
    """One with other options than the last."""
    AcceleratorState._reset_state(reset_partial_state=False)
    GradientState._reset_state()
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))


def _run(loader: Any, log: Log, epochs: int = 3) -> None:
    for epoch in range(epochs):
        for batch in loader:
            log.batch(epoch, batch)


def prepare(data: Data, log: Log) -> None:
    """``accelerator.prepare``, three epochs."""
    _run(accelerator().prepare(data.loader(shuffle=True)), log)


def prepare_seed(data: Data, log: Log) -> None:
    """The same with a seed: what ``skip`` is held against."""
    _run(accelerator().prepare(data.loader(shuffle=True, seed=5)), log)


def seeded(data: Data, log: Log) -> None:
    """With a seed, and the sampler that Accelerate seeds."""
    set_seed(3)
    loader = accelerator(use_seedable_sampler=True).prepare(data.loader(shuffle=True, seed=5))
    torch.manual_seed(1000 + RANK)
    _run(loader, log)


def in_order(data: Data, log: Log) -> None:
    """Without shuffling, as for validation."""
    _run(accelerator().prepare(data.loader()), log)


def uneven(data: Data, log: Log) -> None:
    """``even_batches=False``: ranks may have unequal numbers of batches."""
    _run(accelerator(even_batches=False).prepare(data.loader(shuffle=True, seed=5)), log)


def split_batches(data: Data, log: Log) -> None:
    """``split_batches=True``: each batch is divided between the ranks."""
    _run(accelerator(split_batches=True).prepare(data.loader(shuffle=True, seed=5)), log)


def dispatch(data: Data, log: Log) -> None:
    """``dispatch_batches=True``: the first process loads for all."""
    _run(
        accelerator(dispatch_batches=True, even_batches=False).prepare(data.loader(shuffle=True, seed=5)), log
    )


def skip(data: Data, log: Log) -> None:
    """``skip_first_batches``: an epoch that was interrupted after one batch, in a loader that goes on."""
    loader = accelerator().prepare(data.loader(shuffle=True, seed=5))
    for epoch in range(3):
        if epoch != 1:
            for batch in loader:
                log.batch(epoch, batch)
            continue
        # The same seed and epoch give the same order: what comes first, and then the rest without it.
        for batch in loader:
            log.batch(epoch, batch)
            break
        loader.set_epoch(1)
        rest = skip_first_batches(loader, 1)
        rest.set_epoch(1)
        for batch in rest:
            log.batch(epoch, batch)
        loader.iteration = 2


def unprepared(data: Data, log: Log) -> None:
    """The loader is left out of ``prepare``: a recipe's finds its rank by itself."""
    waiting = accelerator()
    loader = data.loader(shuffle=True)
    if data.kind in ("torch", "dataset"):
        from torch.utils.data import DistributedSampler

        loader = data.loader(sampler=DistributedSampler(range(25), WORLD, RANK))
    for epoch in range(3):
        for batch in loader:
            log.batch(epoch, batch)
            waiting.wait_for_everyone()  # as training does: nobody is ahead by more than a batch


CASES = {
    case.__name__: case
    for case in (prepare, prepare_seed, seeded, in_order, uneven, split_batches, dispatch, skip, unprepared)
}

if __name__ == "__main__":
    only = sys.argv[5:] or list(CASES)
    run_cases(
        {name: CASES[name] for name in only}, ("torch", *KINDS), Path(sys.argv[1]), Path(sys.argv[2]), RANK
    )
