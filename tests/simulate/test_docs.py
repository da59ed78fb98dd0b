"""The scenarios of docs/simulate.md run, and say what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from headrace.cli.simulate import show_result
from headrace.simulate import load_scenario, simulate
from headrace.simulate.files import _TABLES

DOCS = Path(__file__).parents[2] / "docs" / "simulate.md"


def written(tmp_path: Path, place: int) -> str:
    """One of the scenarios, in a file."""
    blocks = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    path = tmp_path / "mine.toml"
    path.write_text(blocks[place])
    return str(path)


def test_the_scenario_runs(tmp_path: Path) -> None:
    result = simulate(load_scenario(written(tmp_path, 0)))
    assert result.complete and len(result.nodes) == 4
    assert max(result.nodes, key=lambda node: node.late).number == 3  # the slow one, as the page says
    assert result.jobs[0].straggler > result.jobs[0].wait


def test_the_cluster_runs(tmp_path: Path) -> None:
    path = written(tmp_path, 1)
    result = simulate(load_scenario(path))
    alone = simulate(load_scenario(path, ["nodes.helpers=0"]))
    assert result.jobs[0].helped > 0.4 and alone.jobs[0].helped == 0
    assert alone.images_s < 0.5 * result.images_s
    assert re.search(
        r"samples came from other machines, .* [1-9]\d% of rows were prepared", show_result(result)
    )
    assert sum(node.stored for node in result.nodes) <= 0.02 * 4_000  # the first epoch has read all


def test_every_key_is_described() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name, table in _TABLES.items():
        for field in msgspec.structs.fields(table):
            assert f"`{field.name}`" in text or f"`{name}.{field.name}`" in text, (name, field.name)
