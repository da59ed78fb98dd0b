"""One training run: the same lines with torch's DataLoader or with headrace's. Prints what the network learned."""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.accuracy.data import NAMES
from benchmarks.accuracy.network import resnet18

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SCALE = (0.5, 1.0)


def datasets(root: Path, side: int, transforms: str) -> tuple[Any, Any]:
    """Training and test pictures: torchvision's ImageFolder and v2 transforms, or the same written out."""
    steps: Any
    if transforms == "written out":
        from benchmarks.dropin import written_out as t

        end: list[Any] = [t.ToTensor(), t.Normalize(MEAN, STD)]
        steps = t.Compose([t.RandomResizedCrop(side, SCALE), t.RandomHorizontalFlip(), *end])
        plain: Any = t.Compose([t.Resize((side, side)), *end])
        folder: Any = t.ImageFolder
    else:
        from torchvision.datasets import ImageFolder as folder  # noqa: N813
        from torchvision.transforms import v2

        end = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        steps = v2.Compose(
            [v2.ToImage(), v2.RandomResizedCrop(side, scale=SCALE), v2.RandomHorizontalFlip(), *end]
        )
        plain = v2.Compose([v2.ToImage(), v2.Resize((side, side)), *end])
    return folder(str(root / "train"), transform=steps), folder(str(root / "test"), transform=plain)


def main() -> None:
    """Train, test, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("loader", choices=["torch", "headrace"])
    parser.add_argument("--transforms", default="written out")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--side", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    args = parser.parse_args()
    if args.loader == "torch":
        from torch.utils.data import DataLoader
    else:
        from headrace import DataLoader  # type: ignore[assignment]
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, test = datasets(args.root, args.side, args.transforms)
    options = {"batch_size": args.batch, "num_workers": args.workers, "persistent_workers": True}
    batches = DataLoader(train, shuffle=True, drop_last=True, **options)
    network = resnet18(len(NAMES), args.width).to(device)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    rates = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=0.1, total_steps=args.epochs * len(batches), pct_start=0.2
    )
    begun = time.perf_counter()
    for _ in range(args.epochs):
        for images, labels in batches:
            optimiser.zero_grad()
            found = network(images.to(device, non_blocking=True))
            loss = torch.nn.functional.cross_entropy(found, labels.to(device, non_blocking=True))
            loss.backward()
            optimiser.step()
            rates.step()
    seconds = time.perf_counter() - begun
    network.eval()
    right = 0
    with torch.inference_mode():
        for images, labels in DataLoader(test, **options):
            right += int((network(images.to(device)).argmax(1).cpu() == labels).sum())
    print(
        json.dumps(
            {
                "accuracy": 100 * right / len(test),
                "seconds": seconds,
                "images_s": args.epochs * len(batches) * args.batch / seconds,
                "loss": float(loss),
                "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
                "native": str(getattr(batches, "stats", lambda: "")()),
            }
        )
    )


if __name__ == "__main__":
    main()
