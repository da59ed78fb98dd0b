"""The simulator's costs from what was measured of a few cases. Pure.

The processor time of a case is a sum: how often each cost was paid, times that cost. How often is what the simulator
says; the time is what was measured. Each case gives one such equation, and there are fewer of them than costs. So the
costs are those that explain what was measured and differ as little as they can, by factors, from guesses. The guesses
are powers of ten: they only say how a sum is divided that no case divides. By how much orders differ (``noise``) does
not change the sum, only how well work is spread; it is the one of some values with which rates come nearest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from headrace.simulate import Costs

GUESSES = {
    "fetch": 1e-5,
    "decode": 1e-3,
    "decode_whole": 1e-3,
    "augment": 1e-4,
    "copy": 1e-5,
    "keep": 1e-5,
    "order": 1e-3,
    "batch": 1e-3,
    "draw": 1e-3,
    "row": 1e-5,
    "report": 1e-3,
    "store": 1e-5,
    "wait": 1e-4,
}
"""Seconds."""
MEASURED_TO = 0.01
"""By how much a measured time is off, as a share of it."""
GUESSED_TO = math.log(10)
"""By how much a guess is off, as the logarithm of a factor."""
_STEPS = 200


@dataclass(frozen=True)
class Equation:
    """What one case says."""

    paid: Mapping[str, float]
    """How often each cost was paid, per image."""
    cpu_s: float
    """Measured, per image."""


def fit(equations: Sequence[Equation], guesses: Mapping[str, float] = GUESSES) -> Costs:
    """The costs that explain the equations; nothing else of ``Costs`` is changed."""
    names = list(guesses)
    paid = np.array([[one.paid.get(name, 0.0) for name in names] for one in equations], np.float64)
    measured = np.array([one.cpu_s for one in equations], np.float64)
    logs = np.log(solve(paid, measured, np.array(list(guesses.values()))))
    found = {name: math.exp(log) for name, log in zip(names, logs.tolist(), strict=True)}
    return msgspec.structs.replace(Costs(), **found)


def nearest(rates: Mapping[float, Sequence[tuple[float, float]]]) -> float:
    """The noise with which simulated and measured rates are nearest, each pair as a factor."""
    return min(rates, key=lambda noise: sum(math.log(ours / theirs) ** 2 for ours, theirs in rates[noise]))


def solve(paid: np.ndarray, measured: np.ndarray, guesses: np.ndarray) -> np.ndarray:
    """Costs, all positive, with the least sum of squares: of the errors of what is measured, and of how far costs are
    from their guesses, each as a logarithm and beside what it may be off."""

    def errors_at(off: np.ndarray) -> np.ndarray:
        errors = np.log(paid @ (guesses * np.exp(off)) / measured) / MEASURED_TO
        return np.concatenate([errors, off / GUESSED_TO])

    off = np.zeros(len(guesses))
    """Of each cost from its guess, as a logarithm."""
    errors, damping = errors_at(off), 1.0
    for _ in range(_STEPS):
        parts = paid * (guesses * np.exp(off))
        slopes = np.vstack(
            [parts / parts.sum(axis=1, keepdims=True) / MEASURED_TO, np.eye(len(off)) / GUESSED_TO]
        )
        step = np.linalg.solve(slopes.T @ slopes + damping * np.eye(len(off)), -slopes.T @ errors)
        after = errors_at(off + step)
        # Logarithms bend, so a step may lead too far: then a shorter one is tried.
        if after @ after > errors @ errors:
            damping *= 4
            continue
        off, errors, damping = off + step, after, damping / 4
        if np.abs(step).max() < 1e-12:
            break
    costs: np.ndarray = guesses * np.exp(off)
    return costs
