"""Pictures of results: panels side by side under one title."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def open_panels(titles: Sequence[str], size: tuple[float, float], **more: Any) -> tuple[Any, Any]:
    """A figure, and its axes, one for each title."""
    import matplotlib  # type: ignore[import-not-found, unused-ignore]

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(titles), figsize=size, **more)
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Any, result: dict[str, Any], setting: str, path: Path) -> None:
    """Say under which ``setting`` the result was measured, and write the picture."""
    photos, machine = result["photos"], result["machine"]
    figure.suptitle(
        f"{photos['count']} photos of {photos['mean_bytes'] / 1000:.0f} KB, random resized crop 224, "
        f"batches of {result['settings']['batch']}{setting} {machine['cpu']} ({machine['cpus']} CPUs), "
        "page cache warm",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
