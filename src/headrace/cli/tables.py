"""Labelled lines and tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_LABEL = 12
_LONGEST = 32


def line(label: str, text: str) -> str:
    """A line with a label before it."""
    return f"{label:<{_LABEL}}{text}"


def table(label: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """A table with the label before its first line."""
    if not rows:
        return [line(label, "none")]
    return [line(label if number == 0 else "", row) for number, row in enumerate(aligned_table(heads, rows))]


def aligned_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, numbers to the right."""
    cells = [list(heads), *([safe(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [all(cell[:1].isdigit() for cell in column[1:]) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        placed = [
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(placed).rstrip())
    return lines


def safe(text: str, longest: int = _LONGEST) -> str:
    """Names come from jobs: nothing in them may move the cursor or break the table."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"
