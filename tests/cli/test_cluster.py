"""``headrace cluster`` where there is no Ray cluster; with one, ``tests/cluster/test_ray.py`` runs it."""

from __future__ import annotations

import pytest

from headrace.cli import main


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
