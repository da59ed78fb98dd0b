"""Measured and expected throughput over the size of the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common.plot import open_panels
from benchmarks.model.cases import SPLITS


def draw(result: dict[str, Any], path: Path) -> None:
    """Marks are measured, lines are what the models expect; nothing is drawn without matplotlib."""
    try:
        figure, axes = open_panels(("bottleneck (default)", "Seneca, as published"), (11, 4.5), sharey=True)
    except ImportError:
        return
    for axis, model in zip(axes, ("bottleneck", "seneca"), strict=True):
        for number, split in enumerate(SPLITS):
            points = [point for point in result["points"] if point["split"] == split]
            ratios = [point["ratio"] for point in points]
            colour = f"C{number}"
            axis.plot(ratios, [point[model] for point in points], color=colour, label=split)
            axis.plot(ratios, [point["measured"] for point in points], "o", color=colour)
        axis.set_xscale("log", base=2)
        axis.set_xticks([point["ratio"] for point in result["points"]][:: len(SPLITS)])
        axis.get_xaxis().set_major_formatter("{x:g}")
        axis.set_xlabel("decoded size of the photos to that of the cache")
    axes[0].set_ylabel("images/s")
    axes[0].set_ylim(bottom=0)
    axes[1].legend(fontsize=8, frameon=False)
    limit = result["settings"]["read_bytes_s"] / 1e6
    figure.suptitle(f"{result['photos']['count']} photos, storage limited to {limit:g} MB/s", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
