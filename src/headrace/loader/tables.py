"""Small tables for kernels, on their way to a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def sent(parts: list[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Arrays on the device, flat, in one copy. Those with the widest numbers first: so each lies where it may."""
    flat = torch.empty(
        sum(part.nbytes for part in parts), dtype=torch.uint8, pin_memory=device.type == "cuda"
    )
    at, spans = 0, []
    for part in parts:
        flat[at : at + part.nbytes] = torch.from_numpy(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
        spans.append((at, at + part.nbytes))
        at += part.nbytes
    there = flat.to(device, non_blocking=True)
    dtypes = [torch.from_numpy(np.zeros(0, part.dtype)).dtype for part in parts]
    return [there[first:last].view(dtype) for (first, last), dtype in zip(spans, dtypes, strict=True)]
