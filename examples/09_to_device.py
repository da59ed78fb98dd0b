"""Send uint8 to the GPU and make floats there: a quarter of the bytes to prepare, keep and copy."""

from __future__ import annotations

import torch

import headrace as hr
from _data import image_folder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Normalise(torch.nn.Module):
    """The first layer of the model: pixel values to normalised floats, on whatever device they are."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", 255 * torch.tensor(STD).view(1, 3, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(value - mean) / std."""
        return (images - self.mean) / self.std


def main() -> None:
    """One epoch through a small model, on the GPU where there is one."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    # Batches come in the channels_last memory format; a model in the same one needs no transposing.
    body = torch.nn.Sequential(Normalise(), torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU())
    model = body.to(device, memory_format=torch.channels_last)
    with image_folder(96) as root:
        recipe = hr.Recipe(
            source=hr.folder(root),
            decode=hr.image.decode(),
            augment=[hr.image.random_resized_crop(64), hr.image.horizontal_flip()],
        )
        # pin_memory: batches lie in page-locked memory, so the copy can run beside the training step.
        with hr.DataLoader(recipe, batch_size=32, shuffle=True, pin_memory=cuda) as loader:
            for images, _labels in loader:
                out = model(images.to(device, non_blocking=True))
                print(f"{images.dtype} {tuple(images.shape)} -> {out.dtype} {tuple(out.shape)} on {device}")


if __name__ == "__main__":
    main()
