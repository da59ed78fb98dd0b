"""Files that list samples and their labels."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

from headrace.core.errors import OptionError


def json_pairs(text: bytes, path: str) -> list[tuple[str, Any]]:
    """File names and labels: of an object, or of a list of pairs or of objects with two values."""
    content = json.loads(text.decode("utf-8"))
    items = list(content.items()) if isinstance(content, dict) else content
    pairs = []
    for item in items if isinstance(items, list) else ():
        values = list(item.values()) if isinstance(item, dict) else item
        if not isinstance(values, list | tuple) or len(values) < 2 or not isinstance(values[0], str):
            raise OptionError(f"manifest {path!r}: expected a file name and a label, got {item!r}")
        pairs.append((values[0], values[1]))
    return pairs


def csv_pairs(text: bytes, path: str, there: Callable[[str], bool]) -> list[tuple[str, str]]:
    """File names and labels, a line each. ``there``: whether there is a file of that name."""
    file = io.StringIO(text.decode("utf-8-sig"), newline="")
    rows = [row for row in csv.reader(file, delimiter="\t" if path.endswith(".tsv") else ",") if row]
    for number, row in enumerate(rows, start=1):
        if len(row) < 2:
            raise OptionError(
                f"manifest {path!r}, line {number}: expected a file name and a label, got {row!r}"
            )
    # A first line that names no file is a header; no list of possible header words is needed.
    if rows and not there(rows[0][0]):
        rows = rows[1:]
    return [(row[0], row[1]) for row in rows]


def numbered(labels: list[Any]) -> tuple[Any, list[str] | None]:
    """Targets from labels: numbers as they are, anything else as the number of its class."""
    for kind in (int, float):
        try:
            return [
                kind(label) if isinstance(label, str) else _exactly(kind, label) for label in labels
            ], None
        except (TypeError, ValueError):
            continue
    if all(isinstance(label, str) for label in labels):
        classes = sorted(set(labels))
        number = {name: at for at, name in enumerate(classes)}
        return [number[label] for label in labels], classes
    return labels, None


def _exactly(kind: type, label: Any) -> Any:
    """``label`` if it is a number of ``kind`` (an integer also counts as a float)."""
    if isinstance(label, bool) or not isinstance(label, (int, kind)):
        raise TypeError(f"{label!r} is no {kind.__name__}")
    return kind(label)
