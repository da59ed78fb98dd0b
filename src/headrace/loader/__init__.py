"""The loader: what people import. The only layer that knows torch."""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ImportError as error:
    from headrace.core.errors import MissingExtra

    raise MissingExtra("torch", "torch", "headrace.DataLoader") from error

from headrace.loader.dataloader import DataLoader
from headrace.loader.disk_tier import Disk, Redis
from headrace.loader.stats import Stats

__all__ = ["DataLoader", "Disk", "Redis", "Stats"]
