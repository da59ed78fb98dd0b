"""Which helpers an agent is connected to. Threads that connect are left out, and time is what the test says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from headrace.cluster import lines as lines_module
from headrace.cluster.lines import Line, Lines
from headrace.cluster.messages import Helper, Node, View
from headrace.cluster.nixl_rows import NixlReceiving
from headrace.planning.helping import MOST_LINES, Reach


def node(number: int, helpers: int) -> Node:
    all_ = tuple(Helper(7000 + one, "a certificate") for one in range(helpers))
    return Node(f"n{number}", "1", f"10.0.0.{number}", 7000, "a certificate", 1 << 20, helpers=all_)


class Stage:
    """An agent's lines, and what is around them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.wanted = 1000.0, True
        self.members = mock.Mock(node="n0", view=View(1, (node(0, 32),)))
        monkeypatch.setattr(lines_module, "members_of", lambda *_: self.members)
        monkeypatch.setattr(Lines, "_attend", lambda *_: None)
        monkeypatch.setattr(lines_module.time, "monotonic", lambda: self.now)
        self.lines = Lines(mock.Mock(rank="n0/1"), mock.Mock(), mock.Mock(), lambda: self.wanted)
        self.lines.lay_out(mock.Mock(fields=[mock.Mock(nbytes=1)]))

    def see(self, *nodes: Node) -> None:
        """These are there, and the rank's own."""
        self.members.view = View(self.members.view.number + 1, (node(0, 32), *nodes))

    def look(self, looks: int = 1, *, busy: bool = False) -> set[str]:
        """Look around. Who was connected to has shown what it does, and has enough to do if ``busy``."""
        for _ in range(looks):
            self.now += 0.2
            self.lines.look_around()
            granted: Any = SimpleNamespace(since=self.now)
            for line in self.all:
                line.ready, line.usual = True, 0.1
                line.pending = dict.fromkeys(range(4 * busy), granted)
            assert (self.lines.best(1) is None) == (busy or not self.all)
        return {one.key for one in self.all}

    @property
    def all(self) -> list[Line]:
        return list(self.lines._lines.values())


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_few_helpers_are_all_connected_to_at_once(stage: Stage) -> None:
    stage.see(*[node(number, 4) for number in range(1, 5)])
    assert len(stage.look()) == Reach.FIRST == 16
    assert not any(one.startswith("10.0.0.0:") for one in stage.look()), "those of its own node are none"


def test_of_many_some_are_and_more_only_while_these_are_busy(stage: Stage) -> None:
    stage.see(*[node(number, 32) for number in range(1, 51)])
    first = stage.look()
    assert len(first) == len({one.split(":")[0] for one in first}) == Reach.FIRST
    assert stage.look(100) == first, "they are enough"
    assert first < stage.look(10, busy=True)
    assert len(stage.look(100, busy=True)) == MOST_LINES
    stage.wanted = False
    before = stage.look(200)
    assert stage.lines._reach.many < MOST_LINES
    stage.wanted = True
    assert stage.look(2) == before, "none is closed"


def test_nothing_is_connected_to_for_nothing(stage: Stage) -> None:
    stage.see(*[node(number, 32) for number in range(1, 51)])
    stage.wanted = False
    assert len(stage.look(100, busy=True)) == Reach.FIRST


def test_others_take_the_place_of_one_that_failed_until_it_has_rested(stage: Stage) -> None:
    stage.see(*[node(number, 1) for number in range(1, 19)])
    first = stage.look()
    failed = min(first)
    stage.lines._end(stage.lines._lines[failed], 5.0)
    assert failed not in stage.look() and len(stage.all) == Reach.FIRST
    for line in stage.all:
        stage.lines._end(line, 1000.0)
    assert len(stage.look()) == 1, "one that nobody has needed is left"
    stage.now += 5.0
    assert failed in stage.look()


def test_one_that_is_late_for_days_rests_for_a_minute_each_time(stage: Stage) -> None:
    stage.see(node(1, 1))
    (key,) = stage.look()
    rests = []
    for _ in range(1500):
        (line,) = stage.all
        line.late = True
        stage.lines._end(line, 0.5)
        rests.append(stage.lines._rests[key] - stage.now)
        stage.now += rests[-1]
        assert stage.look() == {key}
    assert rests == pytest.approx([5.0, 10.0, 20.0, 40.0, *[60.0] * 1496])


def test_nothing_is_known_any_more_of_helpers_that_are_gone(stage: Stage) -> None:
    """Where a node's server is started anew, its helpers have other ports."""
    for number in range(1, 20):
        stage.see(node(number, 1))
        stage.look()
        (line,) = stage.all
        line.late = True
        stage.lines._end(line, 0.5)
        assert list(stage.lines._late) == [line.key]


def test_one_that_ends_the_connection_instead_of_a_first_order_rests_for_longer(stage: Stage) -> None:
    """It may have no memory for these rows: a connection and a lesson twice a second would be for nothing."""
    stage.see(node(1, 1))
    (key,) = stage.look(busy=True)
    rests = []
    for done in (0, 1):
        (line,) = stage.all
        line.pending = {1: mock.Mock(nbytes=0)}
        line.done = done
        stage.lines._end(line, 0.5)
        rests.append(stage.lines._rests[key] - stage.now)
        stage.now += rests[-1]
        stage.look(busy=True)
    (line,) = stage.all
    line.pending, line.receiving = {1: mock.Mock(nbytes=0)}, mock.Mock(spec=NixlReceiving)
    line.receiving.tried, line.receiving.proved = True, False
    stage.lines._end(line, 0.5)  # (over the wire it may do better)
    rests.append(stage.lines._rests[key] - stage.now)
    assert rests == pytest.approx([5.0, 0.5, 0.5])


def test_where_no_thread_may_be_started_it_is_tried_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.see(node(1, 2))
    with monkeypatch.context() as patched:
        patched.setattr(lines_module.threading.Thread, "start", mock.Mock(side_effect=RuntimeError))
        assert not stage.look() and not stage.look()
    assert not stage.look(), "not at once"
    stage.now += 5.0
    assert len(stage.look()) == 2


def test_where_one_helper_refuses_the_others_of_its_node_are_not_asked(stage: Stage) -> None:
    stage.see(*[node(number, 32) for number in range(1, 3)])
    stage.look()
    for line in [one for one in stage.all if one.node.id == "n1"]:
        stage.lines._leave_alone(line.node)
        stage.lines._end(line, 60.0)
    stage.look()
    assert len(stage.all) == Reach.FIRST and {one.node.id for one in stage.all} == {"n2"}


def test_whoever_comes_displaces_nobody(stage: Stage) -> None:
    stage.see(*[node(number, 32) for number in range(1, 6)])
    first = stage.look()
    stage.see(*[node(number, 32) for number in range(1, 9)])
    assert stage.look(10) == first


def test_lines_to_a_node_that_is_gone_are_closed(stage: Stage) -> None:
    stage.see(*[node(number, 4) for number in range(1, 5)])
    stage.look()
    wires: dict[str, Any] = {}
    for line in stage.all:
        line.wire = wires[line.key] = mock.Mock()
    stage.see(*[node(number, 4) for number in range(1, 4)])
    stage.look()
    shut = {key for key, wire in wires.items() if wire.shut.called}
    assert shut == {key for key in wires if key.startswith("10.0.0.4:")} != set()
