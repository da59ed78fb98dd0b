"""A simulation's course as a picture. Needs matplotlib."""

from __future__ import annotations

from itertools import pairwise

from headrace.core.errors import MissingExtra
from headrace.simulate import Point, Result

try:
    from matplotlib.figure import Figure
except ImportError:
    raise MissingExtra("matplotlib", "plot", "--plot") from None

_LINES = 12
"""Jobs that get a line of their own."""
_STRETCHES = 48
"""Over which rates are averaged: batches come in bursts, and what is to be seen is the course."""


def draw(result: Result, path: str) -> None:
    """Rates and hits over virtual time, into a file of whatever kind its name says."""
    points = _spaced(result.course)
    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    times = [(before.time + after.time) / 2 for before, after in pairwise(points)]
    spans = [max(after.time - before.time, 1e-9) for before, after in pairwise(points)]

    def rates(place: int) -> list[float]:
        return [
            (after.images[place] - before.images[place]) / span
            for (before, after), span in zip(pairwise(points), spans, strict=True)
        ]

    by_job = [rates(place) for place in range(len(result.jobs))]
    for job, values in list(zip(result.jobs, by_job, strict=True))[:_LINES]:
        above.plot(times, values, label=job.name, linewidth=1)
    if len(by_job) > 1:
        above.plot(times, [sum(values) for values in zip(*by_job, strict=True)], "k", label="all")
    above.set_ylabel("samples per second")
    above.legend(fontsize="small", ncols=2)
    shares = [
        ((after.hits - before.hits) / rows, (after.decodes - before.decodes) / rows)
        for before, after in pairwise(points)
        for rows in [max(after.rows - before.rows, 1)]
    ]
    below.plot(times, [hits for hits, _ in shares], label="hit rate")
    below.plot(times, [decodes for _, decodes in shares], label="decodes per sample")
    below.set_ylim(bottom=0)
    below.set_xlabel("seconds of virtual time")
    below.legend(fontsize="small")
    for axes in (above, below):
        axes.axvspan(result.began, result.began + result.seconds, color="0.95")
        axes.set_xlim(left=0)
    figure.savefig(path)


def _spaced(points: list[Point]) -> list[Point]:
    """Some of the points, about as far from each other in time."""
    kept = points[:1]
    for point in points[1:]:
        if point.time - kept[-1].time >= points[-1].time / _STRETCHES:
            kept.append(point)
    return kept
