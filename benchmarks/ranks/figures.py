"""What the time stamps of a run's ranks say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LATE = 0.1
"""Of the training step: what makes a step imbalanced, as in ``benchmarks/papers/lobster_imbalance.py``."""

Stamps = Sequence[Sequence[float]] | NDArray[np.float64]
"""Seconds by rank and step."""


def imbalanced(came: Stamps, step_s: float) -> float:
    """The share of steps in which some rank's data came later than another's by more than a tenth of ``step_s``."""
    spreads = np.ptp(np.asarray(came), axis=0)
    return float(np.mean(spreads > LATE * step_s))


def step_seconds(went: Stamps) -> NDArray[np.float64]:
    """How long each step took but for the first: from all ranks' having their batch to that in the next step."""
    return np.diff(np.max(np.asarray(went), axis=0))


def rate(went: Stamps, images: int, begin: int, end: int) -> float:
    """Images per second of all ranks, from step ``begin`` to step ``end``; ``images``: of a step, all ranks."""
    moments = np.max(np.asarray(went), axis=0)
    return float(images * (end - begin) / (moments[end] - moments[begin]))


def lockstep(
    asked: Stamps, came: Stamps, went: Stamps, *, warm: int, step_s: float, images: int
) -> dict[str, Any]:
    """The figures of a run, from step ``warm`` on.

    ``asked``, ``came``: when a rank asked for its batch, and had it. ``went``: when it went through the barrier.
    """
    counted = np.asarray(came)[:, warm:]
    waits = counted - np.asarray(asked)[:, warm:]
    last = np.asarray(went).shape[1] - 1
    steps = step_seconds(np.asarray(went)[:, warm - 1 :])
    p50, p95, p99 = (float(one) for one in np.percentile(steps, (50, 95, 99)))
    found = {
        "steps": len(steps),
        "images_s": rate(went, images, warm - 1, last),
        "p50_ms": 1000 * p50,
        "p95_ms": 1000 * p95,
        "p99_ms": 1000 * p99,
        "p99_over_p50": p99 / p50,
        "waited_ms": 1000 * float(np.mean(waits)),
    }
    if step_s:
        found["imbalanced"] = imbalanced(counted, step_s)
        # Without what a rank lost before it asked, for want of a CPU.
        found["imbalanced_waits"] = imbalanced(waits, step_s)
        found["of_the_most"] = found["images_s"] * step_s / images
    return found
