"""One training job without a model: the same lines with torch's DataLoader or headrace's. Prints what it measured."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_dataset(root: str, kind: str) -> Any:
    """ImageFolder with the usual training transforms: torchvision's v1 or v2, or written out."""
    if kind == "written out":
        from benchmarks.dropin import written_out as t

        steps = [t.RandomResizedCrop(224), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(MEAN, STD)]
        return t.ImageFolder(root, transform=t.Compose(steps))
    import torch
    from torchvision import datasets, transforms
    from torchvision.transforms import v2

    if kind == "torchvision v1":
        transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(224),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, STD),
            ]
        )
    else:
        transform = v2.Compose(
            [
                v2.ToImage(),
                v2.RandomResizedCrop(224, antialias=True),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, STD),
            ]
        )
    return datasets.ImageFolder(root, transform=transform)


def main() -> None:
    """Some epochs; the first is not part of what counts, but told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("loader", choices=["torch", "headrace", "headrace, cached", "headrace, native=False"])
    parser.add_argument("--transforms", default="written out")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    dataset = make_dataset(args.root, args.transforms)
    options: dict[str, Any] = {
        "batch_size": args.batch,
        "shuffle": True,
        "num_workers": args.workers,
        "drop_last": True,
        "persistent_workers": True,
    }
    if args.loader == "torch":
        from torch.utils.data import DataLoader
    else:
        from headrace import DataLoader  # type: ignore[assignment]

        if args.loader == "headrace, cached":
            options["cache"] = len(dataset) * 800_000  # all of them, decoded
        if args.loader == "headrace, native=False":
            options["native"] = False
    loader = DataLoader(dataset, **options)
    epochs = []
    for _ in range(args.epochs):
        begun, count = time.perf_counter(), 0
        for images, labels in loader:
            assert images.shape[1:] == (3, 224, 224) and images.dtype == torch.float32
            count += len(labels)
        seconds = time.perf_counter() - begun
        epochs.append({"images": count, "seconds": seconds})
    print(json.dumps({"epochs": epochs, "stats": str(loader.stats()) if args.loader != "torch" else ""}))
    if args.loader != "torch":
        loader.close()


if __name__ == "__main__":
    main()
