"""NVIDIA DALI on the CPU: the fused decoder, which decodes the crop's region alone; then resize and flip."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from benchmarks.common.contenders import Setup, touch
from nvidia.dali import fn, pipeline_def, types


class DaliLoader:
    """Batches straight from the pipeline, as views of its memory."""

    def __init__(self, setup: Setup) -> None:
        self.batches = len(setup.samples()[0]) // setup.batch
        self.pipe: Any = _pipeline(
            str(setup.photos),
            setup.size,
            batch_size=setup.batch,
            num_threads=setup.workers,
            device_id=None,
            seed=setup.seed,
            prefetch_queue_depth=2,
        )
        self.pipe.build()

    def epoch(self, number: int) -> Iterator[int]:
        """One epoch."""
        for _ in range(self.batches):
            images, _labels = self.pipe.run()
            yield touch(np.asarray(images.as_tensor()))

    def close(self) -> None:
        """End the threads."""
        del self.pipe


@pipeline_def
def _pipeline(root: str, size: int) -> tuple[Any, Any]:
    # shuffle_after_epoch orders the whole list anew each epoch; random_shuffle has a buffer's reach only.
    encoded, labels = fn.readers.file(file_root=root, shuffle_after_epoch=True, name="photos")
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
