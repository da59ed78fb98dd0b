"""A piecewise linear function of the number of threads, fitted to weighted points by least squares.

One basis function per bend (0 before it, a straight line after it) keeps the function continuous by construction.
Where the bends are is tried: there are few thread counts, and with sums over what lies beyond a bend each trial is a
small system of equations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

_GAIN = 0.7
"""A bend has to leave less than this share of the squared error, or it is noise that it follows."""
_FLAT = 1e-4
"""Squared error, in units of the squared mean, that is not worth a bend: about 1 % of deviation."""

_PLACES = 10
"""Points at which a bend is tried, at most; of more, some are left out."""


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
    sums = _Sums(points)
    places = range(1, len(points) - 1)
    if len(places) > _PLACES:
        places = range(1, len(points) - 1, -(-len(places) // _PLACES))
    best = sums.solved(())
    for number in range(1, min(most_bends, len(places)) + 1):
        if best[1] <= sums.enough:
            break
        found = min((sums.solved(bends) for bends in combinations(places, number)), key=lambda one: one[1])
        if found[1] <= _GAIN ** (number - len(best[0].bends)) * best[1]:
            best = found
    return best[0]


class _Sums:
    """Sums over the points from each one on. All that least squares needs is made of them."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.count = len(points)
        self._at = [point.threads for point in points]
        total = sum(point.weight for point in points)
        self._mean = sum(point.weight * point.seconds for point in points) / total
        self._weights, self._threads, self._squares = [0.0], [0.0], [0.0]
        self._seconds, self._products = [0.0], [0.0]
        self._spread = 0.0
        for threads, seconds, weight in reversed(points):
            off = seconds - self._mean  # (small numbers lose less)
            self._weights.append(self._weights[-1] + weight)
            self._threads.append(self._threads[-1] + weight * threads)
            self._squares.append(self._squares[-1] + weight * threads * threads)
            self._seconds.append(self._seconds[-1] + weight * off)
            self._products.append(self._products[-1] + weight * threads * off)
            self._spread += weight * off * off
        for sums in (self._weights, self._threads, self._squares, self._seconds, self._products):
            sums.reverse()
        self.enough = _FLAT * self._mean * self._mean * total

    def solved(self, bends: tuple[int, ...]) -> tuple[Piecewise, float]:
        """Least squares with bends at the points of these numbers, and the squared error that is left."""
        matrix = [
            [self._weights[0], self._threads[0]],
            [self._threads[0], self._squares[0]],
        ]
        right = [self._seconds[0], self._products[0]]
        for number, bend in enumerate(bends):
            where = self._at[bend]
            weight, threads, squares = self._weights[bend], self._threads[bend], self._squares[bend]
            row = [threads - where * weight, squares - where * threads]
            for earlier in bends[:number]:
                first = self._at[earlier]
                row.append(squares - (first + where) * threads + first * where * weight)
            for above, value in zip(matrix, row, strict=True):
                above.append(value)
            matrix.append([*row, squares - 2 * where * threads + where * where * weight])
            right.append(self._products[bend] - where * self._seconds[bend])
        factors = _eliminated([[*row, value] for row, value in zip(matrix, right, strict=True)])
        explained = sum(factor * value for factor, value in zip(factors, right, strict=True))
        changes = tuple((self._at[bend], factor) for bend, factor in zip(bends, factors[2:], strict=True))
        return Piecewise(self._mean + factors[0], factors[1], changes), max(0.0, self._spread - explained)


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
