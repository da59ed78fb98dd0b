"""A training script as users write them, run by every rank that torchrun starts: ``job.py SPEC``, a file.

It trains a small network with DistributedDataParallel on several loaders in lockstep, all of the same samples, so
that one run tells about each of them. Rank 0 saves a checkpoint every few steps; a script that is started again goes
on from it. What each loader gave is noted, step by step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, DistributedSampler

import headrace as hr
from headrace.host import control
from tests.sharing import recipes

OWN = {"seed": 5, "shuffle": True}


class Rows(Dataset[Any]):
    """The samples of the recipe, as a torch dataset."""

    def __init__(self, size: int) -> None:
        self.size, self.whole = size, recipes.everything()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return torch.frombuffer(bytearray(self.whole.content(index)), dtype=torch.uint8), index


def make(kind: str, spec: dict[str, Any]) -> hr.DataLoader[Any]:
    """A loader of one kind. All have the same samples and the same steps."""
    size, drop_last = spec["size"], spec.get("drop_last", False)
    options: dict[str, Any] = {"batch_size": spec["batch_size"], "drop_last": drop_last}
    if kind == "torch":  # with torch's sampler, as its users have it
        dataset = Rows(size)
        sampler = DistributedSampler(dataset, seed=5, drop_last=drop_last)
        return hr.DataLoader(dataset, sampler=sampler, num_workers=spec.get("workers", 0), **options)
    if kind == "sampled":  # the same around a recipe
        recipe = recipes.recipe(size)
        sampler = DistributedSampler(range(size), seed=5, drop_last=drop_last)
        return hr.DataLoader(recipe, sampler=sampler, num_workers=0, **options)
    if kind == "divided":  # in headrace's order
        place = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
        return hr.DataLoader(Rows(size), **OWN, **place, **options)
    recipe = recipes.recipe(size)
    if kind == "recipe":
        return hr.DataLoader(recipe, num_workers=1, **OWN, **options)
    return hr.DataLoader(recipe, num_workers=1, cache="16MiB", share=True, sampling=kind, **OWN, **options)


class Training:
    """All that a checkpoint has to keep."""

    def __init__(self, spec: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.spec, self.folder = spec, Path(spec["folder"])
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        self.model = DistributedDataParallel(torch.nn.Linear(recipes.BYTES, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.loaders = {kind: make(kind, spec) for kind in spec["kinds"]}
        self.epoch = self.step = 0
        self.whole = recipes.everything()
        self.log = (self.folder / f"{spec['name']}-{self.attempt}-{self.rank}.jsonl").open("w")

    def load(self) -> None:
        """Go on from the last checkpoint, if there is one."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return
        saved = torch.load(path, weights_only=True)
        self.epoch, self.step = saved["epoch"], saved["step"]
        self.model.module.load_state_dict(saved["model"])
        for kind, loader in self.loaders.items():
            loader.load_state_dict(saved["loaders"][kind])

    def save(self) -> None:
        """Rank 0 saves for all of them. The file is there as a whole, or the one before is."""
        states = {kind: loader.state_dict() for kind, loader in self.loaders.items()}
        if self.spec.get("compare"):
            of_all: list[Any] = [None] * self.world
            dist.all_gather_object(of_all, states)
            assert all(other == states for other in of_all), of_all
        if self.rank == 0:
            saved = {"epoch": self.epoch, "step": self.step, "loaders": states}
            saved["model"] = self.model.module.state_dict()
            torch.save(saved, self.folder / "partial.pt")
            (self.folder / "partial.pt").rename(self.folder / "checkpoint.pt")

    def train(self) -> None:
        """All epochs, or the rest of them."""
        for epoch in range(self.epoch, self.spec["epochs"]):
            self.epoch = epoch
            for kind in self.spec.get("told", ()):
                self.loaders[kind].sampler.set_epoch(epoch)
            for batches in zip(*self.loaders.values(), strict=True):
                self.one_step(dict(zip(self.loaders, batches, strict=True)))
        weights = [tensor.tolist() for tensor in self.model.module.state_dict().values()]
        self.note(end=self.step, weights=weights, length=[len(loader) for loader in self.loaders.values()])

    def one_step(self, batches: dict[str, Any]) -> None:
        """Train, note what came, and save, or die, if it is time to."""
        values, targets = next(iter(batches.values()))
        loss = (self.model(values.float() / 255).mean() - targets.float().mean()).square()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step += 1
        wrong = sum(recipes.wrong(rows, names.tolist(), self.whole) for rows, names in batches.values())
        got = {kind: names.tolist() for kind, (_, names) in batches.items()}
        self.note(epoch=self.epoch, step=self.step, world=self.world, wrong=wrong, got=got)
        if self.step % self.spec.get("every", 1) == 0:
            self.save()
        self.die()

    def die(self) -> None:
        """As the kernel ends a process that takes too much memory."""
        killed = self.spec.get("kill") or {}
        if self.attempt != 0 or self.step != killed.get("step"):
            return
        dist.barrier()  # (what was to be saved is saved)
        if self.rank == killed["rank"]:
            if killed.get("host"):
                status = control.status()
                assert status is not None
                os.kill(status.pid, signal.SIGKILL)
            if killed.get("machine"):  # the agent, and all of its ranks
                os.killpg(os.getpgid(0), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, **line: Any) -> None:
        self.log.write(json.dumps(line) + "\n")
        self.log.flush()


def main() -> None:
    """One rank."""
    dist.init_process_group("gloo")
    training = Training(json.loads(Path(sys.argv[1]).read_text()))
    training.load()
    training.train()
    for loader in training.loaders.values():
        loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
