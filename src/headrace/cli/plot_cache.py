"""What a cache of any size would give, as a picture. Needs matplotlib."""

from __future__ import annotations

from headrace.core.errors import MissingExtra
from headrace.measure.runs import Run
from headrace.planning import Curve

try:
    from matplotlib.figure import Figure
except ImportError:
    raise MissingExtra("matplotlib", "plot", "--plot") from None

_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def draw(curve: Curve, run: Run, path: str) -> None:
    """Samples per second over the size of the cache, and how it would be split, into a file of any usual kind."""
    size, unit = next(((size, unit) for size, unit in _UNITS if curve.cache[-1] >= size), (1, "B"))
    sizes = [cache / size for cache in curve.cache]
    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    above.plot(sizes, curve.rate, "k", marker=".")
    above.set_ylabel("samples per second, from the model")
    above.set_ylim(bottom=0)
    above.set_title(run.label, fontsize="medium")
    situation = run.situation
    if situation is not None:
        above.axvline(situation.cache / size, color="0.6", linestyle="--", label="now")
        above.axhline(
            situation.recent.delivered / situation.recent.seconds, color="C1", linewidth=1, label="measured"
        )
        above.legend(fontsize="small", loc="lower right")
    parts = list(zip(*curve.split, strict=True))
    stacked = [[cache * part for cache, part in zip(sizes, form, strict=True)] for form in parts[:2]]
    below.stackplot(sizes, *stacked, labels=("encoded", "decoded"), alpha=0.6)
    below.set_ylabel(f"split, {unit}")
    below.set_xlabel(f"size of the cache, {unit}")
    below.legend(fontsize="small", loc="upper left")
    below.set_xlim(0, sizes[-1])
    figure.savefig(path)
