"""SPDL: a pipeline of threads in the training process, decoding with simplejpeg and resizing with OpenCV.

A task is a chunk of a batch, so that the event loop's work per task is shared by many photos. The source never
ends, so the pipeline does not run dry between epochs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
from benchmarks.common.contenders import Setup, touch
from benchmarks.common.crops import draw_box
from benchmarks.single.contenders.jpeg import Decoder
from spdl.pipeline import PipelineBuilder

CHUNK = 32


class SpdlLoader:
    """Chunks of photos in, batches out."""

    def __init__(self, setup: Setup) -> None:
        cv2.setNumThreads(0)
        self.setup = setup
        self.paths, self.labels = setup.samples()
        self.batches = len(self.paths) // setup.batch
        self.pipeline: Any = (
            PipelineBuilder()
            .add_source(self._chunks())
            .pipe(self._prepare, concurrency=setup.workers, output_order="completion")
            .aggregate(setup.batch // CHUNK)
            .pipe(self._collate)
            .add_sink(3)
            .build(num_threads=setup.workers + 1)
        )
        self.pipeline.start()
        self.stream = iter(self.pipeline)

    def epoch(self, number: int) -> Iterator[int]:
        """One epoch."""
        for _ in range(self.batches):
            images, _labels = next(self.stream)
            yield touch(images)

    def close(self) -> None:
        """End the threads."""
        self.pipeline.stop()

    def _chunks(self) -> Iterator[list[int]]:
        draw = np.random.default_rng(self.setup.seed)
        while True:
            order = draw.permutation(len(self.paths))[: self.batches * self.setup.batch].tolist()
            for start in range(0, len(order), CHUNK):
                yield order[start : start + CHUNK]

    def _prepare(self, chunk: list[int]) -> tuple[np.ndarray[Any, Any], list[int]]:
        size = self.setup.size
        out = np.empty((len(chunk), size, size, 3), np.uint8)
        draw, decoder = random.Random(random.getrandbits(64)), Decoder()
        for row, index in zip(out, chunk, strict=True):
            with open(self.paths[index], "rb", buffering=0) as file:
                image = decoder.decode(file.read())
            left, top, wide, high = draw_box(draw, image.shape[1], image.shape[0])
            region = image[top : top + high, left : left + wide]
            if draw.random() < 0.5:
                cv2.flip(cv2.resize(region, (size, size), interpolation=cv2.INTER_LINEAR), 1, dst=row)
            else:
                cv2.resize(region, (size, size), dst=row, interpolation=cv2.INTER_LINEAR)
        return out, [self.labels[index] for index in chunk]

    @staticmethod
    def _collate(chunks: list[tuple[np.ndarray[Any, Any], list[int]]]) -> tuple[Any, Any]:
        labels = np.array([label for _, part in chunks for label in part])
        return np.concatenate([images for images, _ in chunks]), labels


def open_loader(setup: Setup) -> SpdlLoader:
    """The pipeline, started."""
    return SpdlLoader(setup)
