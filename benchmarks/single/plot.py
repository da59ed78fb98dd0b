"""The result of the single-job benchmark as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common.plot import open_panels, save
from benchmarks.single.contenders import ENTRIES

PANELS = (
    ("later_images_s", "images/s, later epochs", 1.0),
    ("cpu_s_per_1000", "CPU-seconds per 1000 images", 1.0),
    ("first_batch_s", "seconds to the first batch", 1.0),
    ("pss_bytes", "peak memory, MB (PSS)", 1e-6),
)
COLOURS = {"headrace": "#1f6f8b", "peers": "#b8b8b8", "bare": "#e0c080"}


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw medians as bars, least and most as whiskers."""
    measured = {item["name"]: item for item in result["contenders"] if item["status"] == "measured"}
    entries = [entry for entry in reversed(ENTRIES) if entry.name in measured]
    titles = [title for _, title, _ in PANELS]
    figure, axes = open_panels(titles, (16, 0.42 * len(entries) + 1.4), sharey=True)
    for axis, (field, _title, scale) in zip(axes, PANELS, strict=True):
        for row, entry in enumerate(entries):
            numbers = measured[entry.name]["summary"].get(field)
            if numbers is None or (field == "pss_bytes" and not entry.loads):
                continue
            value, low, high = (scale * numbers[key] for key in ("median", "min", "max"))
            colour = COLOURS["bare" if not entry.loads else entry.environment]
            axis.barh(row, value, color=colour, xerr=[[value - low], [high - value]], ecolor="#444444")
            axis.text(
                high, row, f" {value:.3g}" if value < 1000 else f" {value:,.0f}", va="center", fontsize=8
            )
        axis.set_yticks(range(len(entries)), [entry.label for entry in entries], fontsize=9)
        axis.margins(x=0.22)
    save(figure, result, f", {result['settings']['workers']} workers on", path)
