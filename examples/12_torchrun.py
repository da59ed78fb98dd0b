"""DistributedDataParallel by torchrun: a rank is killed in mid-epoch, all come back, and each sample comes once.

This is a training script that saves a checkpoint every few steps and goes on from the last one that it finds. Started
by itself, it makes images and calls torchrun with itself; in the second epoch rank 1 ends as if by `kill -9`, and
torchrun starts both ranks again. See docs/distributed.md.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import headrace as hr
from _data import image_folder

EPOCHS = 3


def train(root: Path, checkpoint: Path) -> None:
    """What each rank runs."""
    dist.init_process_group("gloo")
    rank, start = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    paths = sorted(root.rglob("*.jpg"))
    recipe = hr.Recipe(
        source=hr.files(paths, targets=range(len(paths))),  # the sample's number, to show what was given
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(32), hr.image.to_float()],
    )
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = hr.DataLoader(recipe, batch_size=8, shuffle=True, seed=0, num_workers=1)

    first, step = 0, 0
    given: list[int] = []
    if checkpoint.exists():  # all ranks load the same one
        saved = torch.load(checkpoint, weights_only=True)
        first, step = saved["epoch"], saved["step"]
        given = saved["given"] if rank == 0 else []
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    if rank == 0:
        print(f"start {start}: epoch {first}, step {step}", flush=True)

    for epoch in range(first, EPOCHS):
        for images, numbers in loader:  # the first time, what is left of the epoch
            loss = model(images).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step, given = step + 1, given + numbers.tolist()
            if step % 3 == 0:
                parts = {"epoch": epoch, "step": step, "given": of_all_ranks(given)}
                if rank == 0:
                    parts |= {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                    save(checkpoint, parts | {"loader": loader.state_dict()})
            if start == 0 and rank == 1 and step == 7:
                os.kill(os.getpid(), signal.SIGKILL)
        together, given = of_all_ranks(given), []
        if rank == 0:
            print(
                f"epoch {epoch}: each sample once: {sorted(together) == list(range(len(paths)))}", flush=True
            )
    loader.close()
    dist.destroy_process_group()


def save(checkpoint: Path, parts: dict[str, Any]) -> None:
    """Write a checkpoint. The old one stays until the new one is whole."""
    partial = checkpoint.with_suffix(".partial")
    torch.save(parts, partial)
    partial.replace(checkpoint)


def of_all_ranks(numbers: list[int]) -> list[int]:
    """The lists of all ranks, one after the other."""
    lists: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(lists, numbers)
    return [number for part in lists for number in part]


def main() -> None:
    """Call torchrun."""
    with image_folder(50) as root, tempfile.TemporaryDirectory() as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command = [*torchrun, "--max-restarts=1", __file__, str(root), f"{folder}/checkpoint.pt"]
        # Without this, ranks that torchrun starts again look for those before (pytorch/pytorch issue 135712).
        environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        ran = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True)
        if ran.returncode:
            sys.exit(ran.stderr)


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        train(*map(Path, sys.argv[1:]))
    else:
        main()
