"""What other benchmarks measured, where they were run."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.common import report

Result = dict[str, Any]


def read_result(benchmark: str, folder: Path | None = None) -> Result | None:
    """The last full result of a benchmark; None if it was not run."""
    path = (report.RESULTS if folder is None else folder) / f"{benchmark}.json"
    if not path.exists():
        return None
    with path.open(encoding="utf-8") as file:
        found: Result = json.load(file)
    return found


def median_of(sharing: Result, case: str, field: str) -> float | None:
    """A case's median in the results of ``make bench-sharing``; None if it was not measured."""
    for item in sharing["cases"]:
        if item["name"] == case and item["status"] == "measured":
            return float(item["summary"][field]["median"])
    return None


def ratio_of(sharing: Result, case: str, other: str, field: str) -> float | None:
    """The median over rounds of what a case has over another; None if one of them was not measured."""
    runs = []
    for name in (case, other):
        found = next(
            (item for item in sharing["cases"] if item["name"] == name and item["status"] == "measured"), None
        )
        if found is None:
            return None
        runs.append(found["runs"])
    pairs = [(a[field], b[field]) for a, b in zip(*runs, strict=False) if a and b]
    return statistics.median(a / b for a, b in pairs) if pairs else None
