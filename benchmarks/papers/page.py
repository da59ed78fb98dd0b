"""The tables of docs/papers.md, made from the results, so that page and results cannot drift apart.

python -m benchmarks.papers.page        writes the tables of the last full run into the page
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.papers.results import read_result
from benchmarks.papers.rows import SHOWN, Row, show, show_paper

PAGE = Path(__file__).resolve().parents[2] / "docs" / "papers.md"


def experiment_table(item: dict[str, Any]) -> str:
    """One experiment of the results, in Markdown."""
    lines = ["| | the paper | here | how | asked | agrees | |", "|---|---:|---:|---|---|---|---|"]
    for fields in item["rows"]:
        row = Row(**fields)
        cells = (
            row.quantity,
            show_paper(row),
            show(row.ours, row.unit),
            row.how,
            row.compared,
            SHOWN[row.agrees],
            row.note,
        )
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(lines)


def count_line(result: dict[str, Any]) -> str:
    """How many rows agree, of all experiments."""
    kinds = [row["agrees"] for item in result["experiments"].values() for row in item["rows"]]
    machine = result["machine"]
    return (
        f"{len(kinds)} rows: {kinds.count('yes')} agree, {kinds.count('no')} do not,\n"
        f"{kinds.count('later')} come with later capabilities, {kinds.count('absent')} were not measured, "
        f"{kinds.count('beside')} have nothing to agree with.\n"
        f"Last run {result['when'][:10]} on {machine['cpus']} CPUs ({machine['cpu']})."
    )


def blocks(result: dict[str, Any]) -> dict[str, str]:
    """What stands in the page between marks, by the name of the mark."""
    tables = {name: experiment_table(item) for name, item in result["experiments"].items()}
    return {"count": count_line(result), **tables}


def fill(text: str, result: dict[str, Any]) -> str:
    """The page with its blocks as the results have them. Raises ValueError for a block that has no place there."""
    for name, block in blocks(result).items():
        pattern = re.compile(rf"(<!-- papers:{re.escape(name)} -->\n).*?(<!-- /papers -->)", re.DOTALL)
        places = pattern.findall(text)
        if len(places) != 1:
            raise ValueError(f"{PAGE.name} has {len(places)} places for {name}")
        head, tail = pattern.split(text)[0], pattern.split(text)[-1]
        text = f"{head}{places[0][0]}{block}\n{places[0][1]}{tail}"
    return text


def write_tables() -> None:
    """Write the last full run into the page."""
    result = read_result("papers")
    if result is not None and PAGE.exists():
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")


if __name__ == "__main__":
    write_tables()
