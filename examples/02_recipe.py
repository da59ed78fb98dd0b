"""A recipe says where samples lie and what happens to them; headrace decides how to run it.

Crop, resize and flip become one pass over the part of the JPEG that is needed, in code that releases the
interpreter lock, written straight into the batch.
"""

from __future__ import annotations

import torch

import headrace as hr
from _data import image_folder


def main() -> None:
    """Two epochs: the order and the augmentations differ, and both follow from the seed."""
    with image_folder(96) as root:
        train = hr.Recipe(
            source=hr.folder(root),  # a sub-folder per class; also: hr.folder(root, manifest="labels.csv")
            decode=hr.image.decode(),
            augment=[
                hr.image.random_resized_crop(64),
                hr.image.horizontal_flip(),
                hr.image.normalise(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
            ],
        )
        print("classes:", train.source.classes)
        with hr.DataLoader(train, batch_size=32, shuffle=True, seed=1) as loader:
            for epoch in range(2):
                batches = [(images, labels) for images, labels in loader]
                images, labels = batches[0]
                last = images.is_contiguous(memory_format=torch.channels_last)
                print(f"epoch {epoch}: {tuple(images.shape)} {images.dtype}, channels_last: {last}")
                print(f"  first labels {labels[:8].tolist()}, samples {sum(len(b[1]) for b in batches)}")
        sample, label = loader.dataset[5]  # a single sample, prepared here and now
        print(f"sample 5 is of class {label}: {tuple(sample.shape)}")


if __name__ == "__main__":
    main()
