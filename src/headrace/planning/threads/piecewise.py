"""A piecewise linear function of the number of threads, fitted to weighted points by least squares.

One basis function per bend (0 before it, a straight line after it) keeps the function continuous by construction.
Where the bends are is tried: there are few thread counts, and with sums over what lies beyond a bend each trial is a
small system of equations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

_GAIN = 0.7
"""A bend has to leave less than this share of the squared error, or it is noise that it follows."""
_FLAT = 1e-4
"""Squared error, in units of the squared mean, that is not worth a bend: about 1 % of deviation."""


class Point(NamedTuple):
    """What was measured with so many threads."""

    threads: float
    seconds: float
    weight: float = 1.0


class Piecewise(NamedTuple):
    """A continuous function, straight between its bends. Beyond the outermost points it goes on straight."""

    start: float
    slope: float
    bends: tuple[tuple[float, float], ...] = ()
    """Where it bends, and by how much its slope changes there."""

    def at(self, threads: float) -> float:
        """The value for so many threads."""
        value = self.start + self.slope * threads
        for bend, change in self.bends:
            if threads > bend:
                value += change * (threads - bend)
        return value


def merged(points: Iterable[Point]) -> list[Point]:
    """One point for each number of threads, in order; those without weight are left out."""
    sums: dict[float, tuple[float, float]] = {}
    for threads, seconds, weight in points:
        if weight > 0:
            total, product = sums.get(threads, (0.0, 0.0))
            sums[threads] = total + weight, product + weight * seconds
    return [Point(threads, product / total, total) for threads, (total, product) in sorted(sums.items())]


def fit(points: Iterable[Point], most_bends: int = 2) -> Piecewise:
    """The function with the least squared error, with as few bends as explain the points."""
    points = merged(points)
    if not points:
        raise ValueError("nothing to fit a function to")
    if len(points) == 1:
        return Piecewise(points[0].seconds, 0.0)
    total = sum(point.weight for point in points)
    mean = sum(point.weight * point.seconds for point in points) / total
    enough = _FLAT * mean * mean * total
    bends: tuple[float, ...] = ()
    best, error = _solved(points, bends)
    while len(bends) < most_bends and error > enough:
        found = None
        for candidate in points[1:-1]:
            if candidate.threads not in bends:
                trial = (*bends, candidate.threads)
                function, left = _solved(points, trial)
                if found is None or left < found[1]:
                    found = function, left, trial
        if found is None or found[1] > _GAIN * error:
            break
        best, error, bends = found
    return best


def _solved(points: Sequence[Point], bends: tuple[float, ...]) -> tuple[Piecewise, float]:
    """Least squares with given bends, and the squared error that is left."""
    size = 2 + len(bends)
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    rows = []
    for threads, seconds, weight in points:
        row = [1.0, threads, *[max(0.0, threads - bend) for bend in bends], seconds]
        rows.append((row, weight))
        for i in range(size):
            part = weight * row[i]
            if part:
                line = matrix[i]
                for j in range(i, size + 1):
                    line[j] += part * row[j]
    for i in range(size):
        for j in range(i):
            matrix[i][j] = matrix[j][i]
    factors = _eliminated(matrix)
    error = 0.0
    for row, weight in rows:
        off = row[size] - sum(factors[i] * row[i] for i in range(size))
        error += weight * off * off
    return Piecewise(factors[0], factors[1], tuple(zip(bends, factors[2:], strict=True))), error


def _eliminated(matrix: list[list[float]]) -> list[float]:
    """The solution of a symmetric system. Of what the points do not determine, nothing is taken."""
    size = len(matrix)
    largest = [matrix[i][i] for i in range(size)]
    used = []
    for i in range(size):
        pivot = matrix[i][i]
        if pivot <= 1e-10 * largest[i]:
            continue
        used.append(i)
        top = matrix[i]
        for j in range(i + 1, size):
            line = matrix[j]
            ratio = line[i] / pivot
            if ratio:
                for k in range(i, size + 1):
                    line[k] -= ratio * top[k]
    factors = [0.0] * size
    for i in reversed(used):
        line = matrix[i]
        factors[i] = (line[size] - sum(line[j] * factors[j] for j in range(i + 1, size))) / line[i]
    return factors
