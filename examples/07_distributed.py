"""Two ranks: each gets its share of every step, without a DistributedSampler.

A recipe's loader finds rank and world size in torch.distributed or in the environment (torchrun sets it), when its
first iteration begins; it may be made before. The global order is a pure function of (seed, epoch), so ranks agree on
it without talking. Inside trainers that put in samplers of their own: see docs/trainers.md.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import headrace as hr
from _data import image_folder


def train(rank: int, world_size: int, root: Path, meeting: str) -> None:
    """What each rank runs."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    paths = sorted(root.rglob("*.jpg"))
    recipe = hr.Recipe(
        source=hr.files(
            paths, targets=range(len(paths))
        ),  # the sample's number as its target, to show who got what
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(32)],
    )
    with hr.DataLoader(recipe, batch_size=8, shuffle=True, num_workers=1) as loader:
        for epoch in range(2):
            seen = torch.cat([numbers for _, numbers in loader])
            everybody = [torch.empty_like(seen) for _ in range(world_size)]
            dist.all_gather(everybody, seen)
            if rank == 0:
                together = torch.cat(everybody)
                print(
                    f"epoch {epoch}: {len(loader)} batches per rank, {[len(part) for part in everybody]} samples"
                )
                print(f"  together each sample once: {sorted(together.tolist()) == list(range(len(paths)))}")
    dist.destroy_process_group()


def main() -> None:
    """Start two ranks on this machine."""
    with image_folder(64) as root, tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(2, root, f"{folder}/meeting"), nprocs=2)


if __name__ == "__main__":
    main()
