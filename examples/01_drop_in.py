"""Any torch Dataset, in place of torch's loader: change the import and nothing else.

Every argument of torch.utils.data.DataLoader means what it means there. What is gained without a recipe: no copy
between worker and training loop, a loader that can stop and go on in mid-epoch, and workers that may die.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import torch
from torch.utils.data import Dataset

from _data import image_folder
from headrace import DataLoader  # was: from torch.utils.data import DataLoader


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """A dataset as people write them."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path = self.paths[index]
        image = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        return torch.from_numpy(cv2.resize(image, (64, 64))).permute(2, 0, 1), int(path.parent.name[-1])


def main() -> None:
    """One epoch."""
    with image_folder(96) as root:
        loader = DataLoader(Pictures(root), batch_size=32, shuffle=True, num_workers=2)
        for images, labels in loader:
            print(f"images {tuple(images.shape)} {images.dtype}, labels {tuple(labels.shape)}")
        print(f"{len(loader)} batches of {len(loader.dataset)} samples")


if __name__ == "__main__":
    main()
