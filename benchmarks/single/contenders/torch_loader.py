"""torch's DataLoader, with persistent workers and one preparing thread in each."""

from __future__ import annotations

from benchmarks.common.contenders import Iterated, Setup
from benchmarks.single.contenders.datasets import OpenCVPhotos, PILPhotos, one_thread
from torch.utils.data import DataLoader


class TorchLoader(Iterated):
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


def open_pil(setup: Setup) -> TorchLoader:
    """Pillow."""
    return TorchLoader(PILPhotos(setup), setup)


def open_opencv(setup: Setup) -> TorchLoader:
    """simplejpeg and OpenCV."""
    return TorchLoader(OpenCVPhotos(setup), setup)
