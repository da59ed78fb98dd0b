"""Recorded measurements of a node, to be played to the controller again.

A file has one JSON object in each line. The first describes the run: ``format`` (1), ``what`` (a sentence), ``node``
(the fields of `Node`), and ``most_turns``: how often a number may go the other way than before, at most. Each other
line is what was measured before one decision: ``needs``, the fields of `RankNeeds` by the rank's number (``rows``: a
list). A line may also have a ``node``, which holds from there on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from headrace.planning.threads import Node, PerLevel, RankNeeds

FOLDER = Path(__file__).parent / "traces"


class Trace(NamedTuple):
    what: str
    most_turns: int
    looks: list[tuple[Node, dict[int, RankNeeds]]]


def load(path: Path) -> Trace:
    """A recorded run."""
    first, *lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    if first["format"] != 1:
        raise ValueError(f"{path}: format {first['format']} is not known")
    node = Node(**first["node"])
    looks = []
    for line in lines:
        node = Node(**line["node"]) if "node" in line else node
        needs = {
            int(rank): RankNeeds(**{**fields, "rows": PerLevel(*fields["rows"])})
            for rank, fields in line["needs"].items()
        }
        looks.append((node, needs))
    return Trace(first["what"], first["most_turns"], looks)


def save(
    path: Path, what: str, looks: Iterable[tuple[Node, dict[int, RankNeeds]]], most_turns: int = 4
) -> None:
    """Writes a run, so that it can be loaded."""
    node, lines = None, []
    for now, needs in looks:
        if node is None:
            lines.append({"format": 1, "what": what, "node": asdict(now), "most_turns": most_turns})
        line: dict = {"needs": {str(rank): _short(one) for rank, one in needs.items()}}
        if node is not None and node != now:
            line["node"] = asdict(now)
        node = now
        lines.append(line)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def _short(one: RankNeeds) -> dict:
    fields = {name: float(f"{value:.4g}") for name, value in asdict(one).items() if isinstance(value, float)}
    return {**asdict(one), **fields, "rows": [float(f"{value:.4g}") for value in one.rows]}
