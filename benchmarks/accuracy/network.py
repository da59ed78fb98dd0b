"""A residual network of 18 layers (He et al., 2015), without torchvision."""

from __future__ import annotations

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.around = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """As the paper has it."""
        return torch.relu(self.second(self.first(images)) + self.around(images))


def resnet18(classes: int, width: int = 64) -> nn.Module:
    """``width``: channels of the first stage; 64 in the paper."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = width
    for stage in range(4):
        outputs = width << stage
        layers += [Block(inputs, outputs, 2 if stage else 1), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
