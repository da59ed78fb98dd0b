"""The matrix of docs/trainers.md, made from what the tests found."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.trainers.cases import CASES, TITLES
from tests.trainers.data import KINDS

RESULTS = Path(__file__).with_name("results.json")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "trainers.md"
BEGIN, END = "<!-- made by make test-trainers RESULTS=1 -->\n", "<!-- end -->\n"
Found = dict[str, dict[str, dict[str, dict[str, str]]]]
"""Trainer, case, world, kind: what came of it."""


def store(found: Found, packages: dict[str, str]) -> None:
    """Write results and page, if all cases ran and that is wanted."""
    complete = all(
        len(found.get(case.trainer, {}).get(case.name, {}).get(str(world), {})) == len(KINDS)
        for case in CASES
        for world in case.worlds
    )
    if not os.environ.get("HEADRACE_WRITE_RESULTS") or not complete:
        return
    RESULTS.write_text(json.dumps({"packages": packages, "found": found}, indent=1, sort_keys=True) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])


def table() -> str:
    """The matrix."""
    stored: dict[str, Any] = json.loads(RESULTS.read_text())
    versions = ", ".join(f"{name} {version}" for name, version in stored["packages"].items())
    lines = [
        f"Found with {versions}.",
        "",
        "| trainer | what | ranks | dataset | recipe | cache | share |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        for world in case.worlds:
            kinds = stored["found"][case.trainer][case.name][str(world)]
            cells = " | ".join(kinds[kind] for kind in KINDS)
            lines.append(f"| {TITLES[case.trainer]} | {case.text} | {world} | {cells} |")
    return "\n".join([*lines, "", ""])
