"""torch's DataLoader, with persistent workers and one preparing thread in each."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.single.contenders import Setup, touch
from benchmarks.single.contenders.datasets import OpenCVPhotos, PILPhotos, one_thread
from torch.utils.data import DataLoader


class TorchLoader:
    """A DataLoader over one of the datasets."""

    def __init__(self, dataset: OpenCVPhotos, setup: Setup) -> None:
        self.loader = DataLoader(
            dataset,
            batch_size=setup.batch,
            shuffle=True,
            drop_last=True,
            num_workers=setup.workers,
            persistent_workers=True,
            worker_init_fn=one_thread,
        )

    def epoch(self, number: int) -> Iterator[int]:
        """One epoch."""
        for images, _labels in self.loader:
            yield touch(images)

    def close(self) -> None:
        """End the workers."""
        del self.loader


def open_pil(setup: Setup) -> TorchLoader:
    """Pillow."""
    return TorchLoader(PILPhotos(setup), setup)


def open_opencv(setup: Setup) -> TorchLoader:
    """simplejpeg and OpenCV."""
    return TorchLoader(OpenCVPhotos(setup), setup)
