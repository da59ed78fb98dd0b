"""One training job on a GPU, in a process of its own: JSON of what it got on standard output.

``python -m benchmarks.gpu.job LOADER --model resnet18 --photos FOLDER --seconds 8``
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.common.rounds import take_stdout

SIZE, CLASSES = 224, 1000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def photos_of(folder: str) -> list[str]:
    """The photos, many times over if they are few: a photo that comes again is decoded again."""
    return sorted(str(path) for path in Path(folder).rglob("*.jpg"))


# -- loaders --------------------------------------------------------------------------------------------------


def synthetic(args: argparse.Namespace) -> Batches:
    """A batch that is in the GPU's memory, again and again: what no loader can be faster than."""
    shape = (args.batch, 3, SIZE, SIZE)
    images = torch.randint(0, 255, shape, dtype=torch.uint8, device="cuda")
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (args.batch,), device="cuda")
    normalise = _normaliser()
    images = normalise(images)
    while True:
        yield images, labels


class _Photos(torch.utils.data.Dataset[Any]):
    """Decoded and cropped by torchvision on the CPU, as its own examples do it."""

    def __init__(self, paths: list[str]) -> None:
        from torchvision.transforms import v2

        self.paths = paths
        self.transform = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        from torchvision.io import ImageReadMode, decode_jpeg, read_file

        image = decode_jpeg(read_file(self.paths[index]), mode=ImageReadMode.RGB)
        return self.transform(image), index % CLASSES


def torch_pinned(args: argparse.Namespace) -> Batches:
    """torch's loader with a worker for each CPU, pinned memory, copies that do not block."""
    loader = torch.utils.data.DataLoader(
        _Photos(photos_of(args.photos)),
        batch_size=args.batch,
        shuffle=True,
        drop_last=True,
        num_workers=len(os.sched_getaffinity(0)),
        pin_memory=True,
        persistent_workers=True,
        prefetch_factor=4,
    )
    normalise = _normaliser()
    while True:
        for images, labels in loader:
            there = images.cuda(non_blocking=True).contiguous(memory_format=torch.channels_last)
            yield normalise(there), labels.cuda(non_blocking=True)


class _Files(torch.utils.data.Dataset[Any]):
    """Bytes of photos."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(np.fromfile(self.paths[index], np.uint8)), index % CLASSES


def _listed(samples: Any) -> Any:
    blobs, labels = zip(*samples, strict=True)
    return list(blobs), torch.tensor(labels)


def torchvision_gpu(args: argparse.Namespace) -> Batches:
    """Workers read files; the GPU decodes them (nvJPEG by way of torchvision), and crops one by one."""
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms import v2

    loader = torch.utils.data.DataLoader(
        _Files(photos_of(args.photos)),
        batch_size=args.batch,
        shuffle=True,
        drop_last=True,
        num_workers=4,
        persistent_workers=True,
        collate_fn=_listed,
    )
    crop = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
    normalise = _normaliser()
    while True:
        for blobs, labels in loader:
            images = torch.stack(
                [crop(one) for one in decode_jpeg(blobs, mode=ImageReadMode.RGB, device="cuda")]
            )
            there = images.contiguous(memory_format=torch.channels_last)
            yield normalise(there), labels.cuda(non_blocking=True)


def headrace(args: argparse.Namespace) -> Batches:
    """``device="cuda"``; with ``--cache`` photos stay decoded in memory, with ``--gpu-cache`` in the GPU's."""
    import headrace as hr

    paths = photos_of(args.photos)
    recipe = hr.Recipe(
        source=hr.files(paths, [at % CLASSES for at in range(len(paths))]),
        decode=hr.image.decode(),
        augment=[
            hr.image.random_resized_crop(SIZE),
            hr.image.horizontal_flip(),
            hr.image.normalise(MEAN, STD, dtype="bfloat16"),
        ],
    )
    loader = hr.DataLoader(
        recipe,
        batch_size=args.batch,
        shuffle=True,
        drop_last=True,
        device="cuda",
        cache=args.cache or None,
        split=(0, 1, 0) if args.cache else None,
        share=args.share or None,
        gpu_decode=args.gpu_decode,
        gpu_cache=args.gpu_cache or None,
        prefetch_factor=args.prefetch or None,
    )
    while True:
        yield from loader
        args.said = str(loader.stats()) if args.stats else ""


LOADERS: dict[str, Callable[[argparse.Namespace], Batches]] = {
    "synthetic": synthetic,
    "torch": torch_pinned,
    "torchvision-gpu": torchvision_gpu,
    "headrace": headrace,
}


def _normaliser() -> Callable[[torch.Tensor], torch.Tensor]:
    mean = torch.tensor(MEAN, device="cuda").mul(255).view(1, 3, 1, 1)
    std = torch.tensor(STD, device="cuda").mul(255).view(1, 3, 1, 1)
    return lambda images: ((images - mean) / std).to(torch.bfloat16)


# -- training -------------------------------------------------------------------------------------------------


def trainer(model: str) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """A step of training; "none": the batch is taken, and nothing is done with it."""
    if model == "none":
        return lambda images, labels: None
    import torchvision

    torch.backends.cudnn.benchmark = True
    network = getattr(torchvision.models, model)(num_classes=CLASSES).cuda().bfloat16()
    network = network.to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        loss = torch.nn.functional.cross_entropy(network(images).float(), labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    return step


def measure(args: argparse.Namespace) -> dict[str, float]:
    """Images a second, and CPU time of this process, once loader and GPU have found their pace."""
    step = trainer(args.model)
    images, begun, cpu = 0, 0.0, 0.0
    found: dict[str, float] = {}
    start = time.perf_counter()
    meeting = Meeting(args.meet, args.jobs)
    for batch, labels in LOADERS[args.loader](args):
        step(batch, labels)
        now = time.perf_counter()
        if not begun:
            # (whoever is ready goes on until all are: their rates are to be added)
            if now - start >= args.warm and meeting.all_are("ready"):
                torch.cuda.synchronize()
                begun, cpu = time.perf_counter(), time.process_time()
            continue
        if not found:
            images += len(labels)
            if now - begun >= args.seconds:
                torch.cuda.synchronize()
                found = _rates(images, time.perf_counter() - begun, time.process_time() - cpu)
        if found and meeting.all_are("done"):
            break
    return found


class Meeting:
    """Jobs that do the same at the same time: each says in a folder how far it is."""

    def __init__(self, place: str, jobs: int) -> None:
        self._place, self._jobs = Path(place) if place else None, jobs

    def all_are(self, what: str) -> bool:
        """Whether all jobs have said so; this one does now."""
        if self._place is None:
            return True
        (self._place / f"{what}-{os.getpid()}").touch()
        return len(list(self._place.glob(f"{what}-*"))) >= self._jobs


def _rates(images: int, seconds: float, cpu: float) -> dict[str, float]:
    return {
        "images_s": images / seconds,
        "cpu_us_per_image": 1e6 * cpu / max(1, images),
        "gpu_bytes": float(torch.cuda.max_memory_allocated()),
    }


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("loader", choices=sorted(LOADERS))
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--photos", default="")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--cache", default="")
    parser.add_argument("--share", action="store_true")
    parser.add_argument("--gpu-decode", action="store_true", help="the GPU decodes, too")
    parser.add_argument("--gpu-cache", default="", help="memory of the GPU for decoded photos")
    parser.add_argument("--warm", type=float, default=6.0)
    parser.add_argument("--meet", default="", help="a folder in which jobs wait for each other")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--prefetch", type=int, default=0, help="batches ahead, for each worker")
    parser.add_argument("--stats", action="store_true", help="what the loader says of itself, too")
    out, args = take_stdout(), parser.parse_args()
    found: dict[str, Any] = dict(measure(args))
    if args.stats:
        found["stats"] = getattr(args, "said", "")
    with out:
        json.dump(found, out)
    os._exit(0)  # threads of some libraries take their time to go


if __name__ == "__main__":
    main()
