"""Splits and cache sizes, as in figure 8 of Seneca's paper: three single forms, three halves and halves."""

from __future__ import annotations

from typing import Any

Split = tuple[float, float, float]
SPLITS: dict[str, Split] = {
    "encoded": (1, 0, 0),
    "decoded": (0, 1, 0),
    "augmented": (0, 0, 1),
    "encoded+decoded": (0.5, 0.5, 0),
    "encoded+augmented": (0.5, 0, 0.5),
    "decoded+augmented": (0, 0.5, 0.5),
}
SINGLE = ("encoded", "decoded", "augmented")
RATIOS = (1.25, 2.5, 5, 10, 20)
"""The photos' decoded size to that of the cache."""
AUTO = "auto"


def name(split: str, ratio: float) -> str:
    """Of one run."""
    return f"{split} at 1:{ratio:g}"


def orders(case: str, ratio: float, decoded_bytes: int, **more: Any) -> dict[str, Any]:
    """What the job is told."""
    split = AUTO if case == AUTO else SPLITS[case]
    return {"cache": int(decoded_bytes / ratio), "split": split, **more}
