"""NVIDIA DALI on the CPU: samples are read by processes of its own (a parallel external source), threads decode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from benchmarks.common.contenders import touch
from benchmarks.ranks.contenders import Setup
from nvidia.dali import fn, pipeline_def, types

READERS = 4
"""Processes that read, for each rank."""


class Reads:
    """A rank's samples, in its order; called in DALI's processes."""

    def __init__(self, setup: Setup) -> None:
        self._storage, self._batch = setup.storage(), setup.batch
        order = np.random.default_rng(setup.seed).permutation(setup.samples)
        self._order = order[setup.rank :: setup.ranks]

    def __call__(self, info: Any) -> tuple[Any, Any]:
        # (Batches are read ahead, beyond the last one that is wanted.)
        at = (info.iteration * self._batch + info.idx_in_batch) % len(self._order)
        index = int(self._order[at])
        blob = np.frombuffer(self._storage.read(index), np.uint8)
        return blob, np.array([self._storage.labels[index]], np.int64)


class DaliLoader:
    """Batches straight from the pipeline, as views of its memory."""

    def __init__(self, setup: Setup) -> None:
        self._steps = setup.samples // setup.batch // setup.ranks
        self._readers = setup.workers or READERS
        self._pipe: Any = _pipeline(
            Reads(setup),
            setup.size,
            batch_size=setup.batch,
            num_threads=setup.cpus,
            device_id=None,
            seed=setup.seed + setup.rank,
            prefetch_queue_depth=2,
            py_num_workers=self._readers,
            py_start_method="fork",
        )
        self._pipe.build()

    def batches(self) -> Iterator[int]:
        """See ``Contender``."""
        for _ in range(self._steps):
            images, _labels = self._pipe.run()
            yield touch(np.asarray(images.as_tensor()))

    def told(self) -> dict[str, Any]:
        """See ``Contender``."""
        return {"workers": self._readers}

    def close(self) -> None:
        """See ``Contender``."""
        del self._pipe


@pipeline_def
def _pipeline(reads: Reads, size: int) -> tuple[Any, Any]:
    encoded, labels = fn.external_source(
        source=reads,
        num_outputs=2,
        batch=False,
        parallel=True,
        prefetch_queue_depth=2,
        dtype=[types.UINT8, types.INT64],
    )
    images = fn.decoders.image_random_crop(
        encoded,
        device="cpu",
        output_type=types.RGB,
        random_area=[0.08, 1.0],
        random_aspect_ratio=[3 / 4, 4 / 3],
    )
    images = fn.resize(images, resize_x=size, resize_y=size, interp_type=types.INTERP_LINEAR, antialias=False)
    return fn.flip(images, horizontal=fn.random.coin_flip()), labels


def open_loader(setup: Setup) -> DaliLoader:
    """The pipeline, built."""
    return DaliLoader(setup)
