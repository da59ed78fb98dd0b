"""The result of the benchmark of many jobs as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common.plot import open_panels, save
from benchmarks.sharing.contenders import ENTRIES

PANELS = (
    ("images_s", "images/s of all jobs together"),
    ("cpu_s_per_1000", "CPU-seconds per 1000 images"),
    ("decodes_per_sample", "decodes per sample and epoch"),
)
PEERS = ("#9a9a9a", "#c2a878", "#a88fb5", "#8fae8b", "#d8a0a0", "#b85c5c")
OURS = ("#7d8a99", "#a5cfe0", "#63a9c4", "#2f86a6", "#0b3c5d")
MARKS = "osD^vPX"


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw medians over the number of jobs, least and most as whiskers."""
    figure, axes = open_panels([title for _, title in PANELS], (16, 5.2))
    colours = {"peers": iter(PEERS), "headrace": iter(OURS)}
    numbers = sorted({item["jobs"] for item in result["cases"] if not item["scenario"]})
    for at, entry in enumerate(ENTRIES):
        mine = [item for item in result["cases"] if item["contender"] == entry.name and not item["scenario"]]
        colour = next(colours[entry.environment])
        for axis, (field, _title) in zip(axes, PANELS, strict=True):
            points = sorted(
                (item["jobs"], item["summary"][field]) for item in mine if field in item["summary"]
            )
            if not points:
                continue
            middle = [found["median"] for _, found in points]
            low = [found["median"] - found["min"] for _, found in points]
            high = [found["max"] - found["median"] for _, found in points]
            axis.errorbar(
                [n for n, _ in points], middle, yerr=[low, high], label=entry.label, color=colour,
                marker=MARKS[at % len(MARKS)], markersize=5, linewidth=1.6, capsize=2,
            )  # fmt: skip
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xticks(numbers, [str(n) for n in numbers])
        axis.set_xlabel("jobs", fontsize=9)
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", color="#eeeeee")
    axes[0].legend(fontsize=8, frameon=False)
    share = 100 * result["settings"]["cache_share_of_decoded"]
    save(figure, result, f"; shared cache of {share:.0f} % of the decoded photos;", path)
