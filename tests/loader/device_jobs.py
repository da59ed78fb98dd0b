"""Training jobs that share images in the memory of a device, each in a process of its own.

``here``: this machine takes the place of the device, and memory that processes share that of its memory.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headrace as hr
from headrace.loader import choose_session
from headrace.loader.cuts import memory_at
from headrace.loader.device_decoders import decoded
from headrace.recipes.image import kernels

SIZE = 96


class SharedHere:
    """See ``DeviceMemory``: memory of this machine."""

    granularity = mmap.PAGESIZE

    def create(self, nbytes: int) -> int:
        fd = os.memfd_create("stands-for-a-device", os.MFD_CLOEXEC)
        os.ftruncate(fd, nbytes)
        return fd

    def map(self, fd: int, nbytes: int) -> torch.Tensor:
        try:
            return torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8)
        except ValueError as error:
            raise OSError(str(error)) from None

    def close(self) -> None:
        pass


class Here:
    """Takes the place of a feed: its device is this one."""

    def __init__(self, device: torch.device, *, chosen: bool = True) -> None:
        self.device = device
        self.sent = self.copied = 0
        self.waited = 0.0

    def send(self, value: Any, lease: Any = None, finish: Any = None) -> Any:
        return value if finish is None else finish(value)


class Own:
    """Decodes as a device would, with the kernels of workers."""

    def __init__(self) -> None:
        self.count = 0
        self.refuse: Callable[[int], bool] = lambda number: False
        self.error: Exception | None = None

    threads = 2

    def __call__(self, blobs: Any) -> Any:
        return decoded(self.images(blobs))

    def images(self, blobs: Any) -> list[torch.Tensor | None]:
        if self.error is not None:
            raise self.error
        outs = [
            np.empty((height, width, 3), np.uint8) for _, width, height, _, _ in kernels.probe_many(blobs)
        ]
        status = kernels.decode_many(kernels.Workspace(), blobs, None, outs)
        found: list[torch.Tensor | None] = []
        for out, bad in zip(outs, status.tolist(), strict=True):
            self.count += 1
            refused = bad or self.refuse(self.count)
            # (planes, as those who decode on a device lay them out)
            planes = torch.from_numpy(out).permute(2, 0, 1).contiguous()
            found.append(None if refused else planes.permute(1, 2, 0))
        return found


def stand_in(own: Own, set_there: Callable[[Any, str, Any], None] = setattr) -> None:
    """This machine takes the place of a device."""
    set_there(choose_session, "find_device", lambda name: name and torch.device("cpu"))
    set_there(choose_session, "DeviceFeed", Here)
    set_there(choose_session, "find_decoder", lambda device: own)
    set_there(choose_session, "device_memory", lambda device: SharedHere())


def recipe(folder: str) -> hr.Recipe:
    """Crops of the photos of a folder."""
    paths = sorted(str(path) for path in Path(folder).glob("*.jpg"))
    return hr.Recipe(
        hr.files(paths, range(len(paths))),
        decode=hr.image.decode(reduce=False),
        augment=[hr.image.random_resized_crop(SIZE), hr.image.horizontal_flip(), hr.image.to_float()],
    )


def options(seed: int) -> dict[str, Any]:
    """Of all jobs: what they get follows from their seed alone, as all images are decoded by one decoder."""
    return {
        "batch_size": 16,
        "shuffle": True,
        "seed": seed,
        "num_workers": 1,
        "device": "cuda",
        "gpu_decode": 1.0,
        "sampling": "uniform",
    }


def sums(batch: Any) -> list[float]:
    """What stands for a batch: a number for each image."""
    weights = torch.arange(batch[0][0].numel(), dtype=torch.float64, device=batch[0].device) % 97 + 1
    found: list[float] = (batch[0].double().flatten(1) @ weights).tolist()
    return [*found, *batch[1].tolist()]


def expected(folder: str, seed: int) -> list[list[list[float]]]:
    """What a job gets in two epochs that shares nothing and holds nothing. Whoever is first finds out for all."""
    known = Path(folder, f"expected-{seed}.json")
    if not known.exists():
        with hr.DataLoader(recipe(folder), **options(seed)) as loader:
            found = [[sums(batch) for batch in loader] for _ in range(2)]
        new = Path(folder, f"expected-{os.getpid()}")
        new.write_text(json.dumps(found))
        new.rename(known)
    epochs: list[list[list[float]]] = json.loads(known.read_text())
    return epochs


def job(folder: str, into: str, seed: int, here: bool, more: dict[str, Any]) -> None:
    """Train, until a file says that it is enough. ``into``: where it is written, line by line, what came."""
    if here:
        stand_in(Own())
    torch.set_num_threads(1)
    lines = open(into, "a", buffering=1)  # noqa: SIM115
    sys.stderr = lines
    epochs = expected(folder, seed)
    with hr.DataLoader(recipe(folder), **options(seed), share=True, **more) as loader:
        while not os.path.exists(f"{folder}/enough"):
            for number, whole in enumerate(epochs):
                loader.set_epoch(number)
                found = [sums(batch) for batch in loader]
                right = found == whole if here else np.allclose(found, whole)
                device = loader.stats().device
                assert device is not None
                told = {"epoch": number, "right": bool(right), "pid": os.getpid()}
                told |= {name: getattr(device, name) for name in ("decoded", "hits", "held", "held_bytes")}
                lines.write(json.dumps(told) + "\n")
                time.sleep(0.1)  # (others are here, too)
    lines.write(json.dumps({"over": True, "right": True}) + "\n")
    os._exit(0)


def bytes_at(place: int, nbytes: int) -> torch.Tensor:
    """Bytes at an address."""
    return memory_at(place, nbytes, torch.device("cpu"))


def told(into: str) -> list[dict[str, Any]]:
    """What a job has written."""
    if not os.path.exists(into):
        return []
    lines = Path(into).read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]
