"""docs/papers.md says what the committed results say, and its commands are there."""

from __future__ import annotations

import re
import runpy
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from benchmarks.common import report
from benchmarks.papers import page
from benchmarks.papers.registry import EXPERIMENTS
from benchmarks.papers.results import read_result
from benchmarks.papers.rows import Row, at_least, beside, later

ROOT = Path(__file__).parents[2]


def result(*rows: Row) -> dict[str, Any]:
    listed = [asdict(row) for row in rows]
    return {
        "when": "2026-01-02T03:04:05Z",
        "machine": {"cpus": 2, "cpu": "a CPU"},
        "experiments": {"one": {"rows": listed}},
    }


TEXT = "before\n<!-- papers:count -->\nold\n<!-- /papers -->\n<!-- papers:one -->\n<!-- /papers -->\nafter\n"


def test_tables_take_the_place_of_what_was_there() -> None:
    found = result(
        at_least("hits", 0.54, 0.5, "simulated", "%", note="a | b"),
        later("x", None, "peers"),
        beside("y", 3, 4, "simulated", "min", note="set it"),
    )
    text = page.fill(TEXT, found)
    assert "old" not in text and text.startswith("before\n") and text.endswith("after\n")
    assert "| hits | 54.0 % | 50.0 % | simulated | at least | NO | a / b |" in text
    assert "| x | - | - |  |  | later | comes with: peers |" in text
    assert (
        "3 rows: 0 agree, 1 do not,\n1 come with later capabilities, 0 were not measured, 1 have nothing"
        in text
    )
    assert "| y | 3 min | 4 min | simulated |  | - | set it |" in text
    assert page.fill(text, found) == text


@pytest.mark.parametrize("text", ["nothing\n", TEXT + TEXT])
def test_a_page_without_the_one_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="places for count"):
        page.fill(text, result())


def test_the_page_shows_the_committed_results() -> None:
    committed = read_result("papers")
    assert committed is not None and committed["quick"] is False
    assert set(committed["experiments"]) == set(EXPERIMENTS)
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.fill(text, committed) == text


def test_the_results_are_in_the_format_of_the_others() -> None:
    committed = read_result("papers")
    assert committed is not None
    rows = [row for item in committed["experiments"].values() for row in item["rows"]]
    assert len(committed["targets"]) == sum(row["agrees"] not in ("later", "beside") for row in rows)
    for target in committed["targets"]:
        assert target["name"] and target["target"] and isinstance(target["met"], bool)
    assert sum(target["met"] for target in committed["targets"]) == sum(
        row["agrees"] == "yes" for row in rows
    )


def test_no_figure_of_a_paper_stands_without_its_comparison() -> None:
    committed = read_result("papers")
    assert committed is not None
    for name, item in committed["experiments"].items():
        for row in item["rows"]:
            assert row["paper"] is not None or row["words"], (name, row["quantity"])
            if row["agrees"] in ("yes", "no"):
                assert row["ours"] is not None and row["compared"] and row["how"], (name, row["quantity"])
            elif row["agrees"] == "beside":
                assert row["ours"] is not None and row["note"] and not row["compared"], (
                    name,
                    row["quantity"],
                )
            else:
                assert row["ours"] is None and row["note"], (name, row["quantity"])


def test_the_commands_of_the_page_are_there() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"```\n(make papers.*?)```", text, re.DOTALL)
    commands = [line.split("#")[0].split() for line in block.splitlines()]
    assert [words[0] for words in commands] == ["make", "make", "PYTHONPATH=."]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.split("\npapers:", 1)[1].split("\n\n", 1)[0]
    assert "-m benchmarks.papers.bench $(if $(QUICK),--quick)" in recipe
    assert commands[2][1:4] == ["python", "-m", "benchmarks.papers.bench"]
    assert commands[2][4] == "--only" and commands[2][5] in EXPERIMENTS


def test_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # One that only reads what another benchmark has left, which is nothing here; what it writes goes elsewhere.
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--only", "seneca-figure-8"])
    monkeypatch.delitem(sys.modules, "benchmarks.papers.bench", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("benchmarks.papers.bench", run_name="__main__")
    said = capsys.readouterr()
    assert ended.value.code == 0
    assert re.search(
        r"0 agree, 0 do not, 0 come with later capabilities, [1-9]\d* were not measured", said.out
    )
    assert "Seneca, figure 8" in said.err
    assert (tmp_path / "papers.quick.json").exists()


def test_readers_find_the_page() -> None:
    assert "(docs/papers.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(../docs/papers.md)" in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
