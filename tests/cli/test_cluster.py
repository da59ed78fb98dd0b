"""``headrace cluster`` where there is no Ray cluster; with one, ``tests/cluster/test_ray.py`` runs it."""

from __future__ import annotations

from unittest import mock

import msgspec
import pytest

from headrace.cli import main
from headrace.cli.cluster import _shown
from headrace.cluster import on_ray
from headrace.cluster.messages import DatasetStatus, Noted, Status, encode
from headrace.core.errors import HostUnavailable


def test_without_a_ray_cluster_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "status", "--address", "127.0.0.1:1"]) == 1
    assert "ray start --head" in capsys.readouterr().err


def test_memory_has_to_be_some(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "start", "--memory", "0"]) == 1
    assert "holds nothing" in capsys.readouterr().err
    assert main(["cluster", "start", "--memory", "much"]) == 1
    assert "much" in capsys.readouterr().err


def test_ports_are_checked_before_ray_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "start", "--ports", "7500-7400"]) == 1
    assert "--ports 7500-7400" in capsys.readouterr().err
    assert main(["cluster", "start", "--ports", "7400-7402", "--cpus", "3"]) == 1
    assert "this node wants 4" in capsys.readouterr().err


def test_datasets_that_look_alike_are_shown_apart() -> None:
    """Two folds of a folder, of which three nodes hold a part each."""
    like = "80 samples of it"
    parts = DatasetStatus("first", like, 80, 20, 2048), DatasetStatus("second", like, 80, 10, 0)
    found = [Status(f"n{node}", 1, 1 << 20, 0, 0, 0, 0, 0, 0, parts) for node in range(3)]
    lines = [line.split() for line in _shown(found) if like in line]
    assert [line[-4:] for line in lines] == [["80", "60", "6.0", "KiB"], ["80", "30", "0", "B"]]


def test_servers_of_another_headrace_are_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [encode(Noted())]
    monkeypatch.setattr(on_ray, "_manager", mock.Mock())
    monkeypatch.setattr(on_ray, "_told", lambda ray, asked: told)
    assert on_ray.statuses(None) == []
    for other in (told[0].replace(b"Noted", b"Other"), msgspec.msgpack.encode({"type": "Status", "node": 5})):
        told[:] = [other]
        with pytest.raises(HostUnavailable, match="install one version on all nodes"):
            on_ray.statuses(None)
