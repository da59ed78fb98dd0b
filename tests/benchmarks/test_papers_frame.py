"""The frame of the papers' experiments: rows, what is reported, what is written."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.common import report
from benchmarks.papers import bench, registry
from benchmarks.papers.bar import Bar
from benchmarks.papers.experiment import Experiment
from benchmarks.papers.rows import (
    Row,
    absent,
    at_least,
    at_most,
    beside,
    claim,
    later,
    near,
    row_target,
    show,
    show_paper,
)


def made(name: str, *rows: Row, interrupted: bool = False) -> Experiment:
    def run(quick: bool, progress: Bar) -> Iterator[Row]:
        progress.step(0, 1, "at work")
        yield from rows
        if interrupted:
            raise KeyboardInterrupt

    return Experiment(name, "Paper", f"figure {name}", "something", run)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results go here, and the page is left alone."""
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "write_tables", lambda: None)
    monkeypatch.delenv("QUICK", raising=False)
    return tmp_path


def use(monkeypatch: pytest.MonkeyPatch, *experiments: Experiment) -> None:
    monkeypatch.setattr(bench, "EXPERIMENTS", {one.name: one for one in experiments})


@pytest.mark.parametrize(
    ("row", "agrees"),
    [
        (near("q", 100, 109, 0.1, "computed"), "yes"),
        (near("q", 100, 111, 0.1, "computed"), "no"),
        (near("q", 100, 89, 0.1, "computed"), "no"),
        (at_least("q", 0.9, 0.9, "computed"), "yes"),
        (at_least("q", 0.9, 0.89, "computed"), "no"),
        (at_most("q", 5, 5, "computed"), "yes"),
        (at_most("q", 5, 5.1, "computed"), "no"),
        (claim("q", "it falls", 3, False, "less than 2", "computed"), "no"),
        (claim("q", "it falls", 1, True, "less than 2", "computed"), "yes"),
    ],
)
def test_rows_say_whether_they_agree(row: Row, agrees: str) -> None:
    assert row.agrees == agrees
    target = row_target("name", row)
    assert target is not None and target.met == (agrees == "yes") and target.value == row.ours


def test_targets_say_what_was_wanted() -> None:
    def wanted(row: Row) -> str:
        target = row_target("name", row)
        assert target is not None
        return target.target

    assert wanted(near("q", 0.54, 0.5, 0.1, "computed")) == "0.54 within 10%"
    assert wanted(at_least("q", 0.9, 0.95, "computed", words="0.9 in all")) == ">= 0.9"
    assert wanted(at_most("q", 570, 3, "computed")) == "<= 570"
    assert wanted(Row("q", 0.942, 0.99, "simulated", "at least 97%", "yes")) == "at least 97%"
    assert wanted(claim("q", "it falls", 1, True, "less than 2", "computed")) == "less than 2"


def test_what_comes_later_is_no_target_and_what_is_absent_is_not_met() -> None:
    row = later("q", 0.6, "peer caches", "%")
    assert row_target("name", row) is None and row.ours is None
    assert row_target("name", beside("q", 3, 3, "simulated")) is None
    assert row.note == "comes with: peer caches" and show_paper(row) == "60.0 %"
    missing = row_target("name", absent("q", 0.9, "make bench-model"))
    assert missing is not None and missing.value is None and not missing.met
    assert "make bench-model" in missing.note


def test_figures_are_shown_with_their_units() -> None:
    assert show(0.732, "%") == "73.2 %"
    assert show(1.81, "x") == "1.81x"
    assert show(31.74, "min") == "31.7 min"
    assert show(9300, "") == "9,300"
    assert show(None, "%") == "-"
    assert (
        show_paper(at_least("q", 1.81, 2, "computed", "x", words="1.81x over Quiver")) == "1.81x over Quiver"
    )


def test_a_disagreement_is_reported_and_does_not_fail(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, made("1", near("speed", 4, 3, 0.1, "simulated", "x", note="the reason")))
    assert bench.main([]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "speed" in line]
    assert line.split() == ["Paper", "figure", "1", "speed", "4x", "3x", "simulated", "NO", "the", "reason"]
    assert "0 agree, 1 do not" in out
    written = json.loads((place / "papers.json").read_text())
    (target,) = written["targets"]
    assert (
        target["met"] is False
        and target["value"] == 3
        and target["name"] == "Paper, figure 1: speed (simulated)"
    )
    assert written["experiments"]["1"]["rows"][0]["agrees"] == "no"


def test_an_interruption_shows_what_was_found_and_writes_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = at_least("found before", 1, 2, "computed")
    use(monkeypatch, made("1", row, interrupted=True), made("2", at_least("never", 1, 2, "computed")))
    assert bench.main([]) == bench.INTERRUPTED
    said = capsys.readouterr()
    assert "found before" in said.out and "never" not in said.out
    assert "so far" in said.err
    assert list(place.iterdir()) == []


def test_only_renews_some_and_keeps_the_others(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, made("1", at_least("a", 1, 2, "computed")), made("2", at_least("b", 1, 2, "computed")))
    assert bench.main([]) == 0
    use(monkeypatch, made("1", at_least("a", 1, 0, "computed")), made("2", at_least("b", 1, 7, "computed")))
    assert bench.main(["--only", "1"]) == 0
    written = json.loads((place / "papers.json").read_text())
    assert [written["experiments"][name]["rows"][0]["ours"] for name in ("1", "2")] == [0, 2]
    assert [target["met"] for target in written["targets"]] == [False, True]


def test_a_quick_run_leaves_the_results_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def run(quick: bool, progress: Bar) -> Iterator[Row]:
        asked.append(quick)
        yield at_least("a", 1, 2, "computed")

    use(monkeypatch, Experiment("1", "Paper", "figure 1", "something", run))
    assert bench.main(["--quick"]) == 0
    monkeypatch.setenv("QUICK", "1")
    assert bench.main([]) == 0
    assert asked == [True, True]
    assert [path.name for path in place.iterdir()] == ["papers.quick.json"]


def test_an_unknown_experiment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main(["--only", "seneca-figure-99"])
    assert ended.value.code == 2
    assert "seneca-figure-13" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_moves_on_a_terminal_and_says_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    lines, screen = io.StringIO(), Terminal()
    for out in (lines, screen):
        bar = Bar(2, out)
        bar.begin("one")
        bar.begin("two")
        bar.step(1, 2, "half of it")
        bar.clear()
    assert lines.getvalue().splitlines() == ["  0%  one", " 50%  two", " 75%  two: half of it"]
    assert " 75%" in screen.getvalue() and "two: half of it" in screen.getvalue()
    assert screen.getvalue().count("\n") == 1 and screen.getvalue().endswith("\r\x1b[1A\x1b[2K")


def test_every_module_with_an_experiment_is_registered() -> None:
    folder = Path(registry.__file__).parent
    with_one = {path.stem for path in folder.glob("*.py") if "\nEXPERIMENT = " in path.read_text()}
    registered = {one.run.__module__.rsplit(".", 1)[-1] for one in registry.EXPERIMENTS.values()}
    assert with_one == registered and len(registered) == len(registry.EXPERIMENTS)


def test_the_papers_that_were_asked_for_are_there() -> None:
    titles: dict[str, Any] = {one.title: one for one in registry.EXPERIMENTS.values()}
    for title in (
        "Seneca, figure 8", "Seneca, figure 13", "Seneca, figure 14", "Joader, table 1", "Joader, figure 6",
        "Joader, figure 7", "Lobster, section 5.3", "Lobster, section 5.5", "Lobster, section 5.6",
        "DLCache, figure 7", "KSpeed, figure 13",
    ):  # fmt: skip
        assert title in titles
