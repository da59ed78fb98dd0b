"""The scenario of docs/simulate.md runs, and says what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from headrace.simulate import load_scenario, simulate
from headrace.simulate.files import _TABLES

DOCS = Path(__file__).parents[2] / "docs" / "simulate.md"


def test_the_scenario_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "mine.toml"
    path.write_text(block)
    scenario = load_scenario(str(path))
    result = simulate(scenario)
    assert result.complete and len(result.nodes) == 4
    assert max(result.nodes, key=lambda node: node.late).number == 3  # the slow one, as the page says
    assert result.jobs[0].straggler > result.jobs[0].wait


def test_every_key_is_described() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name, table in _TABLES.items():
        for field in msgspec.structs.fields(table):
            assert f"`{field.name}`" in text or f"`{name}.{field.name}`" in text, (name, field.name)
