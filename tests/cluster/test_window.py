"""What a process asks for at a time: never more than the limit, and what is over makes room."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

import pytest

from headrace.cluster import window as window_module
from headrace.cluster.asking import ask_nodes
from headrace.cluster.messages import Node
from headrace.cluster.window import Asked, Window
from tests.loader.helpers import wait_until


def test_there_is_room_for_so_much_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "_FIRST", 1000)
    monkeypatch.setattr(window_module, "_LEAST", 1000)
    window = Window()
    first = window.ask(700, wait=False)
    second = window.ask(300, wait=False)
    assert first is not None and second is not None
    assert window.ask(1, wait=False) is None
    got: list[Asked | None] = []
    waiting = threading.Thread(target=lambda: got.append(window.ask(5000, wait=True)))
    waiting.start()
    window.answered(second)
    assert window.ask(301, wait=False) is None and not got
    window.answered(first)
    waiting.join(20)
    assert got and got[0] is not None, "one request at a time always may go, however large"
    window.answered(got[0])
    assert window.ask(5000, wait=False) is not None


def test_answers_that_take_longer_the_more_there_are_make_it_small() -> None:
    window = Window()
    before = window._pace.limit
    for _ in range(50):
        asked = [one for _ in range(8) if (one := window.ask(1 << 17, wait=False)) is not None]
        for place, one in enumerate(asked):
            # (a cable that takes 10 ms for each)
            one.since -= 0.01 * (place + 1)
            window.answered(one, 1 << 17)
    assert window._pace.limit < 0.6 * before


def test_without_pacing_all_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PACING", "0")
    window = Window()
    assert all(window.ask(1 << 20, wait=False) for _ in range(60))


def test_who_waits_is_woken_by_whoever_is_done() -> None:
    window = Window()
    held = window.ask(1 << 30, wait=True)
    assert held is not None
    got: list[Asked | None] = []
    threads = [threading.Thread(target=lambda: got.append(window.ask(10, wait=True))) for _ in range(5)]
    for thread in threads:
        thread.start()
    window.answered(held)
    assert wait_until(lambda: len(got) == 5)


@pytest.mark.parametrize("where", ["connecting", "sending", "waiting"])
def test_a_request_that_is_interrupted_leaves_its_room_to_the_next(where: str) -> None:
    """Ctrl-C in a notebook, whose next loader asks by the same window."""
    node = Node("n1", "1", "10.0.0.1", 7000, "a certificate", 1 << 20)
    connection = mock.Mock()
    members = mock.Mock(node="n0", window=Window())
    members.borrow.return_value = connection
    interrupted: Any = {
        "connecting": members.borrow,
        "sending": connection.send,
        "waiting": connection.receive,
    }
    interrupted[where].side_effect = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        ask_nodes(
            members,
            [(node, [0])],
            lambda rows: (b"", []),
            lambda *_: 0,
            size=lambda: 1 << 30,
            patience=lambda _: 1.0,
            taken=1.0,
        )
    assert members.drop.called == (where != "connecting")
    assert members.window.ask(1 << 30, wait=False) is not None
