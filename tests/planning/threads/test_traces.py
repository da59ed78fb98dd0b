"""Every recorded trace, played to the controller."""

from pathlib import Path

import pytest

from headrace.planning.threads import Decision, StaffController
from tests.planning.threads.plant import series, turns
from tests.planning.threads.test_controller import check
from tests.planning.threads.trace import FOLDER, Trace, load, save

FILES = sorted(FOLDER.glob("*.jsonl"))


def played(trace: Trace) -> list[Decision]:
    controller, decisions = StaffController(), []
    for node, needs in trace.looks:
        decisions.append(controller.decide(needs, node))
        check(decisions[-1], node, len(needs))
    return decisions


def test_there_are_traces() -> None:
    assert len(FILES) >= 4


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recorded_run_does_not_make_it_swing(file: Path) -> None:
    trace = load(file)
    decisions = played(trace)
    assert played(trace) == decisions, "decisions follow from what was measured alone"
    together = [one for one in decisions if one.budgets.keys() == decisions[0].budgets.keys()]
    for name, values in series(together).items():
        assert turns(values) <= trace.most_turns, (name, values)


@pytest.mark.parametrize("file", FILES[:1], ids=lambda file: file.stem)
def test_what_is_saved_is_loaded(file: Path, tmp_path: Path) -> None:
    trace = load(file)
    save(tmp_path / "again.jsonl", trace.what, trace.looks, trace.most_turns)
    assert load(tmp_path / "again.jsonl") == trace
