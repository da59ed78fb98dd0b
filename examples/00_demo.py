"""The same training, fed by torch's DataLoader and by headrace: what differs is how long it waits for data.

    make demo        (or: python examples/00_demo.py)

Makes 2000 JPEG images in .data/demo once, then trains a small network on them twice, for two epochs each. Both
loaders read the same files, crop, resize and flip at random, and give batches of floats; both may use the same
CPUs and the same number of workers.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import headrace as hr
from _data import CLASSES, picture_path, write_picture

CROP = 128
BATCH = 64
MOST_CPUS = 8
"""More would only make the demo shorter; both sides get the same ones."""
DECODED = 500 * 375 * 3 + 128
"""Bytes of one decoded image in the cache, its header included."""


# -- torch's side: what most training scripts do -------------------------------------------------------------


class PilImages(torch.utils.data.Dataset[Any]):
    """Open with PIL, random resized crop, flip, to a tensor of floats from 0 to 1."""

    def __init__(self, root: Path) -> None:
        classes = sorted(path for path in root.iterdir() if path.is_dir())
        self.samples = [(p, label) for label, c in enumerate(classes) for p in sorted(c.glob("*.jpg"))]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        image = Image.open(path).convert("RGB")
        image = image.crop(random_box(*image.size)).resize((CROP, CROP), Image.Resampling.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels.float().div_(255), label


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """A random part of the image: 8% to 100% of its area, 3:4 to 4:3 wide."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = float(np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3))))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


def torch_loader(root: Path, workers: int) -> torch.utils.data.DataLoader[Any]:
    """torch's loader, its workers kept from epoch to epoch."""
    return torch.utils.data.DataLoader(
        PilImages(root), batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=True
    )


# -- headrace's side -----------------------------------------------------------------------------------------


def headrace_loader(root: Path, workers: int) -> hr.DataLoader:
    """The same steps as a recipe; decoded images are kept, as far as half of the free memory goes."""
    recipe = hr.Recipe(
        source=hr.folder(root),
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(CROP), hr.image.horizontal_flip(), hr.image.to_float()],
    )
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cache = min(len(recipe.source) * DECODED, free // 2)
    return hr.DataLoader(recipe, batch_size=BATCH, shuffle=True, num_workers=workers, cache=cache, seed=0)


# -- the training that both feed -----------------------------------------------------------------------------


@dataclass
class Run:
    """What was measured of one loader."""

    seconds: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    images: int = 0
    cpu: float = 0.0
    cached: int = 0
    """Bytes of decoded images that were kept."""
    loss: float = 0.0
    accuracy: float = 0.0


def network() -> torch.nn.Module:
    """A network so small that a CPU, too, can be kept waiting for data; the same weights every time."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = [torch.nn.AvgPool2d(4)]
    for channels_in, channels_out in ((3, 16), (16, 32)):
        conv = torch.nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False)
        layers += [conv, torch.nn.BatchNorm2d(channels_out), torch.nn.ReLU()]
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, CLASSES)]
    return torch.nn.Sequential(*layers)


def train(title: str, make: Callable[[], Any], epochs: int, progress: Progress) -> Run:
    """Train through one loader and take its times, from making it to its last worker's end."""
    run = Run()
    cpu = cpu_seconds()
    loader = make()
    try:
        model = network()
        optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
        for epoch in range(epochs):
            task = progress.add_task(f"{title}, epoch {epoch + 1}", total=len(loader))
            train_epoch(loader, model, optimiser, run, lambda task=task: progress.advance(task))
    finally:
        if isinstance(loader, hr.DataLoader):
            run.cached = loader.stats().cache["decoded"].bytes
            loader.close()
        del loader
        gc.collect()  # torch's workers end with their loader, and count as CPU time once they have
    run.cpu = cpu_seconds() - cpu
    return run


def train_epoch(
    loader: Iterable[Any],
    model: torch.nn.Module,
    optimiser: torch.optim.Optimizer,
    run: Run,
    advance: Callable[[], None],
) -> None:
    """One epoch, with the time spent waiting for batches apart."""
    begun = time.perf_counter()
    losses = 0.0
    right = seen = 0
    batches = iter(loader)
    waited = time.perf_counter() - begun  # starting workers is waiting, too
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - asked
        if batch is None:
            break
        images, labels = batch
        scores = model(images)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses += loss.item() * len(labels)
        right += int((scores.argmax(1) == labels).sum())
        seen += len(labels)
        advance()
    run.seconds.append(time.perf_counter() - begun)
    run.waited.append(waited)
    run.images, run.loss, run.accuracy = seen, losses / seen, right / seen


def warm_up() -> None:
    """A step whose time nobody counts: torch loads parts of itself at the first one, whoever comes first."""
    model = network()
    batch = torch.rand(BATCH, 3, CROP, CROP), torch.zeros(BATCH, dtype=torch.int64)
    train_epoch([batch] * 2, model, torch.optim.AdamW(model.parameters(), lr=5e-3), Run(), lambda: None)


def cpu_seconds() -> float:
    """CPU time of this process and of its workers that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


# -- data, table, command line -------------------------------------------------------------------------------


def make_images(root: Path, count: int, progress: Progress) -> None:
    """Make what is missing, then read all of it once: nobody is the first to read from the disk."""
    missing = [number for number in range(count) if not picture_path(root, number).exists()]
    if missing:
        for number in progress.track(missing, description=f"making {len(missing)} images"):
            write_picture(root, number)
    for number in range(count):
        picture_path(root, number).read_bytes()


def compare(torchs: Run, ours: Run) -> Table:
    """Both runs side by side."""
    table = Table(title=f"{torchs.images} images per epoch", title_justify="left")
    for column in ("", "torch DataLoader", "headrace", "ratio"):
        table.add_column(column, justify="left" if not column else "right")

    def row(name: str, theirs: float, our: float, unit: str, ratio: float | None = None) -> None:
        table.add_row(name, f"{theirs:{unit}}", f"{our:{unit}}", "" if ratio is None else f"{ratio:.1f}x")

    for epoch, (theirs, our) in enumerate(zip(torchs.seconds, ours.seconds, strict=True)):
        row(f"epoch {epoch + 1}: seconds", theirs, our, ".2f", theirs / our)
        row("         images/s", torchs.images / theirs, ours.images / our, ".0f")
        row("         waiting for data", torchs.waited[epoch] / theirs, ours.waited[epoch] / our, ".0%")
    row("CPU-seconds in all", torchs.cpu, ours.cpu, ".1f", torchs.cpu / ours.cpu)
    row("last epoch: loss", torchs.loss, ours.loss, ".3f")
    row("            accuracy", torchs.accuracy, ours.accuracy, ".0%")
    return table


def main() -> None:
    """Make the images, train twice, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="few images and one epoch: only a test")
    parser.add_argument(
        "--data", type=Path, default=Path(__file__).resolve().parent.parent / ".data" / "demo"
    )
    options = parser.parse_args()
    count, epochs = (160, 1) if options.quick else (2000, 2)
    cpus = sorted(os.sched_getaffinity(0))[:MOST_CPUS]
    os.sched_setaffinity(0, cpus)
    torch.set_num_threads(1)  # the network is small; the other CPUs are for the workers
    workers = max(2, len(cpus))
    root = options.data / str(count)
    console = Console()
    load = os.getloadavg()[0]
    if load > len(cpus) / 2:
        console.print(
            f"Other programs are busy here (load {load:.1f} on {len(cpus)} CPUs): expect times to vary."
        )
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        make_images(root, count, progress)
        warm_up()
        theirs = train("torch DataLoader", lambda: torch_loader(root, workers), epochs, progress)
        ours = train("headrace", lambda: headrace_loader(root, workers), epochs, progress)
    console.print(compare(theirs, ours))
    console.print(
        f"{len(cpus)} CPUs, {workers} workers each. headrace kept {ours.cached / 2**20:.0f} MiB of decoded images "
        "in the first epoch; from the second on, it only crops, resizes and flips what it kept."
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through the clean-up, as Ctrl-C does
    try:
        main()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(130)
