"""Triton, where it is installed: torch's builds for CUDA bring it along. Elsewhere torch's operations do the same."""

from __future__ import annotations

import importlib
from typing import Any

import torch

triton: Any
tl: Any
try:
    triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")
except ImportError:
    triton = tl = None

BLOCK = 1024
"""Numbers that each program of a kernel works on."""


def usable(pixels: torch.Tensor) -> bool:
    """Whether there are kernels for these pixels (N, height, width, channels)."""
    return triton is not None and pixels.is_cuda and pixels.is_contiguous() and pixels[0].numel() < 1 << 31
