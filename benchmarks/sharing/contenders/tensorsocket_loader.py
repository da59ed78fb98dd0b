"""TensorSocket: one producer around torch's DataLoader, one consumer in each job.

Two ways of handing batches over:

- ``pickle``, as TensorSocket does it by itself for tensors on the CPU: each is pickled with the whole storage that
  it lies in and copied through a socket to every consumer. Batches broadcast together share a storage, so the
  fewer the better; with one at a time the producer fails (IndexError), so it is two.
- ``shm``: through torch's shared memory, by the hooks that TensorSocket has for packing; its default of eight
  batches together.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch.multiprocessing
from benchmarks.common.contenders import Iterated, Setup
from benchmarks.sharing.contenders import Counts
from benchmarks.single.contenders.torch_loader import open_opencv
from tensorsocket import TensorConsumer, TensorProducer


def _share(data: tuple[Any, ...]) -> bytes:
    file = io.BytesIO()
    ForkingPickler(file).dump(data)
    return file.getvalue()


def _unshare(data: bytes) -> Any:
    return ForkingPickler.loads(data)


def _ports(options: dict[str, Any]) -> dict[str, Any]:
    data, acks, heart_in, heart_out = options["ports"]
    return {"port": data, "ack_port": acks, "heart_ports": (heart_in, heart_out)}


def _packs(options: dict[str, Any]) -> bool:
    if options["transport"] != "shm":
        return False
    # Names instead of descriptors: the peer is no child, and descriptors would need a server in each process.
    torch.multiprocessing.set_sharing_strategy("file_system")
    return True


class Consumer(Iterated):
    """A job that is fed; the producer ends its epochs."""

    def __init__(self, setup: Setup, options: dict[str, Any]) -> None:
        more = {"unpack_fn": _unshare} if _packs(options) else {}
        self.loader = TensorConsumer(batch_size=setup.batch, **_ports(options), **more)

    def counts(self, images: int) -> Counts:
        """Consumers decode nothing; the producer counts."""
        return Counts(0, 0, 0)

    def close(self) -> None:
        """Threads end with the process."""


def open_consumer(setup: Setup, number: int, options: dict[str, Any]) -> Consumer:
    """Connect to the producer."""
    return Consumer(setup, options)


class Counted:
    """The producer's loader, counting what it gives out: not all of that reaches the consumers."""

    def __init__(self, loader: Any, tell: Callable[[int], None]) -> None:
        self.loader, self.tell, self.images = loader, tell, 0

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.images += len(batch[0])
            self.tell(self.images)
            yield batch


def produce(setup: Setup, options: dict[str, Any], tell: Callable[[int], None]) -> None:
    """Load and broadcast until the process is ended."""
    loader = open_opencv(setup).loader
    more = {"pack_fn": _share} if _packs(options) else {}
    producer = TensorProducer(
        Counted(loader, tell), producer_batch_size=options["together"], **_ports(options), **more
    )
    while True:
        for _ in producer:
            pass
