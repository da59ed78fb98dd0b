"""Labelled lines and tables: drawn by rich on a terminal, plain and as wide as what is in them elsewhere."""

from __future__ import annotations

import sys
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
    lines = aligned_table(heads, rows, before=_LABEL)
    return [line(label if number == 0 else "", row) for number, row in enumerate(lines)]


def aligned_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, before: int = 0) -> list[str]:
    """Aligned columns, numbers to the right. ``before``: letters that come before each line."""
    cells = [[safe(cell) for cell in row] for row in rows]
    columns = list(zip(heads, *cells, strict=True))
    right = [all(cell[:1].isdigit() for cell in column[1:]) for column in columns]
    if sys.stdout.isatty():
        return _drawn(heads, cells, right, before)
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in (heads, *cells):
        placed = [
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(placed).rstrip())
    return lines


def _drawn(
    heads: Sequence[str], cells: Sequence[Sequence[str]], right: Sequence[bool], before: int
) -> list[str]:
    """For a terminal: what is too wide for it is wrapped within its column."""
    from rich.console import Console  # takes its time to come in, and on pipes it is not needed
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head, at_right in zip(heads, right, strict=True):
        drawn.add_column(Text(head), justify="right" if at_right else "left")
    for row in cells:
        drawn.add_row(*map(Text, row))
    console = Console()
    with console.capture() as captured:
        console.print(drawn, width=console.width - before)
    return captured.get().splitlines()


def safe(text: str, longest: int = _LONGEST) -> str:
    """Names come from jobs: nothing in them may move the cursor or break the table."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in text)
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"
