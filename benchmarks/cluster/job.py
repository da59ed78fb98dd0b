"""One rank of the benchmark: some epochs over the photos in the bucket; prints what each took, as JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SIZE, BATCH = 160, 32


def headrace(
    share: bool | str,
    workers: int,
    source: str,
    batch: int,
    *,
    large: bool = False,
    tier: str = "",
    sampling: str = "auto",
) -> Iterator[Any]:
    """headrace's loader; epochs, one after the other. ``large``: photos that are resized first."""
    import headrace as hr

    crop = (
        [hr.image.resize(256), hr.image.random_crop(224)] if large else [hr.image.random_resized_crop(SIZE)]
    )
    recipe = hr.Recipe(
        source=hr.folder(source),
        decode=hr.image.decode(),
        augment=[*crop, hr.image.horizontal_flip()],
    )
    # (the cache of one machine would hide what the cluster does: it is made too small for anything)
    options: dict[str, Any] = {"cache": 0} if share is False else {"cache": "1MiB", "sampling": sampling}
    if tier:
        options["tier"] = False if tier == "none" else tier
    loader = hr.DataLoader(
        recipe, batch_size=batch, shuffle=True, num_workers=workers, share=share, **options
    )
    while True:
        yield loader


class Objects:
    """A torch dataset of the bucket's objects: those of a batch are read at once, by obstore."""

    def __init__(self) -> None:
        import obstore

        found = [one["path"] for page in obstore.list(self.open(), prefix="train/") for one in page]
        self.keys = sorted(found)
        self.store: Any = None
        self.owner = 0

    @staticmethod
    def open() -> Any:
        """The bucket."""
        from obstore.store import S3Store

        return S3Store("photos", client_options={"allow_http": True})

    def __len__(self) -> int:
        return len(self.keys)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """What DataLoader calls with the indices of a batch."""
        import obstore
        import torch
        from benchmarks.bucket.contenders.work import prepare

        if self.owner != os.getpid():
            self.store, self.owner = self.open(), os.getpid()

        async def one(key: str) -> bytes:
            got = await obstore.get_async(self.store, key)
            return bytes(await got.bytes_async())

        async def read() -> list[bytes]:
            return await asyncio.gather(*(one(self.keys[index]) for index in indices))

        return [
            (prepare(blob, SIZE), torch.tensor(index))
            for index, blob in zip(indices, asyncio.run(read()), strict=True)
        ]


def torch_obstore(workers: int) -> Iterator[Any]:
    """torch's loader over the bucket."""
    from benchmarks.bucket.contenders.work import start_worker
    from torch.utils.data import DataLoader

    objects: Any = Objects()
    loader = DataLoader(
        objects, batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=True,
        worker_init_fn=start_worker, multiprocessing_context="spawn",
    )  # fmt: skip
    while True:
        yield loader


def ray_data(_: int) -> Iterator[Any]:
    """Ray Data: objects read and prepared by tasks on the node of the job; shuffled by files."""
    import pyarrow.fs
    import ray
    from benchmarks.bucket.contenders.work import prepare

    # (told where it is, as all nodes have one /tmp, and a driver finds the first of them there)
    own = os.environ["RAY_NODE_ADDRESS"]
    ray.init(
        address=os.environ["RAY_ADDRESS"], _node_ip_address=own, log_to_driver=False, logging_level="ERROR"
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # Each job has CPUs and an object store of its own node: with all of them for all jobs, as by default, some were
    # seen to wait for the others' without end.
    resources = next(one["Resources"] for one in ray.nodes() if one["NodeManagerAddress"] == own)
    store = int(0.9 * resources["object_store_memory"])
    group = ray.util.placement_group(
        [{"CPU": resources["CPU"] - 1, "object_store_memory": store, f"node:{own}": 0.001}]
    )
    ray.get(group.ready())
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
    context.scheduling_strategy = context.scheduling_strategy_large_args = strategy
    files = pyarrow.fs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"].removeprefix("http://"), scheme="http"
    )

    def make(row: dict[str, Any]) -> dict[str, Any]:
        return {"image": prepare(row["bytes"], SIZE).numpy()}

    while True:
        found = ray.data.read_binary_files("photos/train/", filesystem=files, shuffle="files").map(make)
        yield found.iter_torch_batches(batch_size=BATCH)


def tf_data(options: argparse.Namespace) -> Iterator[Any]:
    """tf.data service, in TensorFlow's own environment."""
    from benchmarks.cluster.tf_service import epochs

    return epochs(options.source, options.photos, SIZE, BATCH, trainer=f"rank{options.name}")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("loader", choices=["headrace", "uniform", "alone", "torch", "ray", "tf"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--source", default="s3://photos/train")
    parser.add_argument("--photos", type=int, default=0, help="of an epoch, for who cannot know")
    parser.add_argument("--meet", default="", help="a folder in which ranks meet before each epoch")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--name", default="0")
    parser.add_argument(
        "--turn", default="0/1", help="its place among jobs that have turns, and their number"
    )
    parser.add_argument("--turn-epochs", type=int, default=0, help="epochs of a turn")
    parser.add_argument("--large", action="store_true", help="the photos are large")
    parser.add_argument("--tier", default="", help="for headrace; none: no decoded samples on nodes")
    parser.add_argument("--batch", type=int, default=BATCH, help="images of a batch, for headrace")
    options = parser.parse_args()
    loaders = {
        "headrace": lambda: headrace("ray", options.workers, options.source, options.batch),
        "uniform": lambda: headrace(
            "ray",
            options.workers,
            options.source,
            options.batch,
            large=options.large,
            tier=options.tier,
            sampling="uniform",
        ),
        "alone": lambda: headrace(False, options.workers, options.source, options.batch),
        "torch": lambda: torch_obstore(options.workers),
        "ray": lambda: ray_data(options.workers),
        "tf": lambda: tf_data(options),
    }
    epochs, out = loaders[options.loader](), []
    for epoch in range(options.epochs):
        batches = next(epochs)
        _await_turn(options, epoch)
        _meet(options, f"begin{epoch}")
        begun, images, waits = time.perf_counter(), 0, []
        iterator = iter(batches)
        while True:
            asked = time.perf_counter()
            batch = next(iterator, None)
            if batch is None:
                break
            waits.append(time.perf_counter() - asked)
            images += len(batch["image"] if isinstance(batch, dict) else batch[0])
        seconds = time.perf_counter() - begun
        out.append(
            {"images": images, "begun": time.monotonic() - seconds, "seconds": seconds, "waits": waits[4:]}
        )
        _meet(options, f"end{epoch}")
        _end_turn(options, epoch)
    used = resource.getrusage(resource.RUSAGE_SELF)
    stats = str(batches.stats()) if options.loader in ("headrace", "uniform", "alone") else ""
    print(json.dumps({"epochs": out, "cpu": used.ru_utime + used.ru_stime, "stats": stats}), flush=True)
    os._exit(0)


def _meet(options: argparse.Namespace, what: str) -> None:
    """Wait for the other ranks."""
    if not options.meet:
        return
    folder = Path(options.meet)
    (folder / f"{what}-{options.name}").touch()
    _wait(lambda: len(list(folder.glob(f"{what}-*"))) >= options.ranks)


def _await_turn(options: argparse.Namespace, epoch: int) -> None:
    """Before the first epoch of a turn: wait until the job before has had its own."""
    if not options.turn_epochs or epoch % options.turn_epochs:
        return
    place, jobs = map(int, options.turn.split("/"))
    before = epoch // options.turn_epochs * jobs + place - 1
    if before >= 0:
        _wait((Path(options.meet) / f"turn{before}").exists)


def _end_turn(options: argparse.Namespace, epoch: int) -> None:
    if options.turn_epochs and not (epoch + 1) % options.turn_epochs:
        place, jobs = map(int, options.turn.split("/"))
        (Path(options.meet) / f"turn{epoch // options.turn_epochs * jobs + place}").touch()


def _wait(until: Callable[[], bool]) -> None:
    last = time.monotonic() + 600
    while not until() and time.monotonic() < last:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
