"""Targets and tables: what was wanted, what came out, and both as text and JSON."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.machine import describe_machine

RESULTS = Path(__file__).resolve().parents[1] / "results"


@dataclass(frozen=True)
class Target:
    """A number that a benchmark wants; one that could not be measured has no value and is not met."""

    name: str
    value: float | None
    target: str
    met: bool
    spread: tuple[float, float] | None = None
    note: str = ""


def target(name: str, values: Sequence[float], sign: str, limit: float, note: str = "") -> Target:
    """The target ``median(values) sign limit``, with sign ``>=`` or ``<=``; one value per round."""
    wanted = f"{sign} {limit:g}"
    if not values:
        return Target(name, None, wanted, False, note=note or "no undisturbed measurement")
    value = statistics.median(values)
    met = value >= limit if sign == ">=" else value <= limit
    return Target(name, value, wanted, met, (min(values), max(values)), note)


def target_table(targets: Sequence[Target]) -> str:
    """The targets, for people."""
    rows = [("target", "value", "wanted", "met", "note")]
    for item in targets:
        value = "-" if item.value is None else f"{item.value:.3g}"
        if item.spread and item.spread[0] != item.spread[1]:
            value += f" ({item.spread[0]:.3g} to {item.spread[1]:.3g})"
        rows.append((item.name, value, item.target, "yes" if item.met else "NO", item.note))
    return table(rows, text=(0, 4))


def table(rows: Sequence[Sequence[str]], text: Sequence[int] = (0,)) -> str:
    """Rows in columns; the first row is the heading. The columns in ``text`` are aligned left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column in text else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def header(benchmark: str, quick: bool) -> dict[str, Any]:
    """What a benchmark's result begins with."""
    return {
        "benchmark": benchmark,
        "quick": quick,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": describe_machine(),
    }


def publish(benchmark: str, quick: bool, result: dict[str, Any], targets: Sequence[Target]) -> None:
    """Print the targets, and write the result."""
    print(f"\n{target_table(targets)}")
    name = f"{benchmark}.quick.json" if quick else f"{benchmark}.json"
    write_json(RESULTS / name, result, targets)
    print(f"\nwritten: benchmarks/results/{name}")


def write_json(path: Path, result: dict[str, Any], targets: Sequence[Target]) -> None:
    """Write a benchmark's result, targets first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    text = json.dumps({"targets": [asdict(item) for item in targets], **result}, indent=1)
    # Results are committed: where the repository lies on the machine that measured is nobody's business.
    partial.write_text(text.replace(f"{Path.cwd()}/", "") + "\n")
    partial.rename(path)
