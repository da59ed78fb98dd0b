"""Ports that a firewall leaves open: what a user may say, and who listens on which."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.cluster import helper
from headrace.cluster.helper import Config, Helpers
from headrace.cluster.ports import ANY, check_room, listen_on, parse_ports
from headrace.core.errors import HostUnavailable, OptionError
from tests.loader.helpers import wait_until

HERE = "127.0.0.1"


@pytest.fixture
def three() -> Iterator[tuple[int, list[socket.socket]]]:
    """The first of three ports in a row, all of which are taken."""
    for first in range(21_400, 30_000, 7):
        with ExitStack() as stack:
            try:
                taken = [stack.enter_context(socket.create_server((HERE, first + more))) for more in range(3)]
            except OSError:
                continue
            yield first, taken
            return


@pytest.mark.parametrize(
    ("text", "ports"),
    [("7400-7500", (7400, 7500)), ("7400", (7400, 7400)), (" 1 - 65535 ", (1, 65535)), ("", ANY)],
)
def test_ports_as_a_user_says_them(text: str, ports: tuple[int, int]) -> None:
    assert parse_ports(text) == ports


@pytest.mark.parametrize("text", ["7500-7400", "0-5", "7400-65536", "a-b", "7400-", "-5", "7400:7500", "²-³"])
def test_what_are_no_ports(text: str) -> None:
    with pytest.raises(OptionError, match=r"--ports .*port"):
        parse_ports(text)


def test_as_many_ports_as_processes() -> None:
    check_room((7400, 7402), 2)
    check_room(ANY, 1000)
    with pytest.raises(OptionError, match=r"3 of them, and this node wants 4.*--cpus"):
        check_room((7400, 7402), 3)


def test_the_first_that_is_free(three: tuple[int, list[socket.socket]]) -> None:
    first, taken = three
    with pytest.raises(HostUnavailable, match=f"--ports {first}-{first + 2}: none of them is free on {HERE}"):
        listen_on(HERE, (first, first + 2))
    taken[1].close()
    with listen_on(HERE, (first, first + 2)) as found:
        assert found.getsockname()[1] == first + 1
    with listen_on(HERE, ANY) as found:
        assert found.getsockname()[1] > 0


def test_helpers_listen_there_and_those_without_a_port_wait_for_one(
    three: tuple[int, list[socket.socket]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "_AGAIN", 0.5)
    first, taken = three
    taken[2].close()
    made = Helpers(Config("n", HERE, "token", str(tmp_path / "n.sock"), ports=(first, first + 2)), 2)
    try:
        made.look(wait=True)
        assert [one.port for one in made.all] == [first + 2]
        taken[0].close()

        def both() -> bool:
            made.look()
            return {one.port for one in made.all} == {first, first + 2}

        assert wait_until(both, 30.0)
    finally:
        made.close()
