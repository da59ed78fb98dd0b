"""What the sharing tests' jobs load: samples that say who they are, and augmentations that leave a stamp."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import headrace as hr
from headrace.sources.simulated import SyntheticSource

BYTES = 64
STAMP = 8
"""Bytes at a row's end that ``stamp`` replaces: they tell one augmented instance from another."""


class Window(SyntheticSource):
    """Samples ``start..start + size`` of one large synthetic dataset, so that two windows may overlap."""

    def __init__(self, start: int, size: int, latency: float) -> None:
        super().__init__(start + size, BYTES, BYTES, (BYTES,), latency, None, start + size)
        self.start = start
        self.size = start + size
        self._targets = np.arange(start, start + size)

    def __len__(self) -> int:
        return self.size - self.start

    def content(self, index: int) -> bytes:
        return super().content(self.start + index)

    def identity(self, index: int) -> str:
        return super().identity(self.start + index)

    def fingerprint(self) -> str:
        return super().fingerprint() + f"@{self.start}"


def stamp(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An augmentation: random bytes at the end."""
    value = value.copy()
    value[-STAMP:] = np.random.randint(0, 256, STAMP, np.uint8)
    return value


def stamp_otherwise(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Another augmentation."""
    value = value.copy()
    value[-STAMP:] = np.random.randint(0, 256, STAMP, np.uint8)
    return value[::1]


def decode_by_hand(data: Any) -> np.ndarray[Any, Any]:
    """Another decode step, with the same result."""
    return np.frombuffer(bytes(data), np.uint8).copy()


def first_of(samples: list[Any]) -> Any:
    """A collate function."""
    values = torch.stack([torch.as_tensor(np.asarray(value)) for value, _ in samples])
    return values, torch.tensor([int(target) for _, target in samples])


AUGMENT: dict[str, list[Any]] = {"": [], "stamp": [stamp], "other": [stamp_otherwise]}


def recipe(
    size: int, start: int = 0, latency: float = 0.0, cost: float = 0.0, augment: str = "", decode: str = ""
) -> hr.Recipe:
    """A recipe over a window of the samples; the target of each is its number."""
    step = decode_by_hand if decode else hr.synthetic.decode(cost=cost, shape=(BYTES,))
    return hr.Recipe(Window(start, size, latency), decode=step, augment=AUGMENT[augment])


def wrong(values: torch.Tensor, targets: list[int], whole: SyntheticSource) -> int:
    """Rows that do not hold the sample that their target names."""
    rows = values.numpy()
    keep = BYTES - STAMP
    return sum(
        row.tobytes()[:keep] != whole.content(at)[:keep] for row, at in zip(rows, targets, strict=True)
    )


def everything() -> SyntheticSource:
    """All samples of which windows are cut."""
    return SyntheticSource(1 << 20, BYTES, BYTES, (BYTES,), 0.0, None, None)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
