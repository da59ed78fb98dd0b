"""MosaicML Streaming: StreamingDataset over MDS shards, its local folder as cache, through torch's DataLoader."""

from __future__ import annotations

from typing import Any

from benchmarks.bucket.contenders import Iterated, Setup
from benchmarks.bucket.contenders.work import collate, prepare, start_worker
from streaming import StreamingDataset
from torch.utils.data import DataLoader


class Shards(StreamingDataset):  # type: ignore[misc]
    """Samples are prepared where they are read, in the workers."""

    size = 224

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return prepare(sample["jpeg"], self.size), sample["number"]


class MosaicLoader(Iterated):
    """The loader."""

    def __init__(self, setup: Setup) -> None:
        # Its usual shuffle takes samples from all shards at once. With room for half of those, nearly every sample
        # has one downloaded again: an epoch takes minutes then, and moves gigabytes.
        block = max(setup.batch, setup.count // 8)
        small = {"shuffle_algo": "py1br", "shuffle_block_size": block, "predownload": block}
        dataset = Shards(
            remote=f"{setup.bucket}/mds",
            local=str(setup.cache / "mds"),
            shuffle=True,
            shuffle_seed=setup.seed,
            batch_size=setup.batch,
            num_canonical_nodes=1,
            cache_limit=setup.cache_bytes,
            **({} if setup.fits else small),
        )
        dataset.size = setup.size
        self.loader = DataLoader(
            dataset,
            batch_size=setup.batch,
            num_workers=setup.workers,
            collate_fn=collate,
            persistent_workers=True,
            worker_init_fn=start_worker,
        )


def open_loader(setup: Setup) -> MosaicLoader:
    """The loader."""
    return MosaicLoader(setup)
