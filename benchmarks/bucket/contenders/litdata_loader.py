"""LitData: StreamingDataset over its own chunks, with its cache folder, through its own loader."""

from __future__ import annotations

from typing import Any

from benchmarks.bucket.contenders import Iterated, Setup
from benchmarks.bucket.contenders.work import collate, prepare, start_worker
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming import downloader

# Its chunks come through obstore, which it gives no way to talk to a server without TLS, such as ours.
downloader._OBSTORE_CLIENT_OPTIONS = {**downloader._OBSTORE_CLIENT_OPTIONS, "allow_http": True}


class Chunks(StreamingDataset):  # type: ignore[misc]
    """Samples are prepared where they are read, in the workers."""

    size = 224

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return prepare(sample["jpeg"], self.size), sample["number"]


class LitDataLoader(Iterated):
    """The loader."""

    def __init__(self, setup: Setup) -> None:
        dataset = Chunks(
            f"{setup.bucket}/litdata",
            cache_dir=str(setup.cache),
            shuffle=True,
            drop_last=False,
            seed=setup.seed,
            max_cache_size=setup.cache_bytes,
            storage_options={"endpoint_url": setup.endpoint},
        )
        dataset.size = setup.size
        self.loader = StreamingDataLoader(
            dataset,
            batch_size=setup.batch,
            num_workers=setup.workers,
            collate_fn=collate,
            persistent_workers=True,
            worker_init_fn=start_worker,
        )


def open_loader(setup: Setup) -> LitDataLoader:
    """The loader."""
    return LitDataLoader(setup)
