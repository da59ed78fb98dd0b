"""Environment variables: what they say, that one module alone reads them, and that all are listed."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.core import environment
from headrace.core.errors import OptionError

REPO = Path(__file__).parents[2]
SOURCES = REPO / "src" / "headrace"
READER = Path(environment.__file__).relative_to(SOURCES)
MEANS = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
"""By which ``os`` gives the environment."""


def touched(source: str) -> Iterator[int]:
    """Lines of a module in which the environment is read or set."""
    for node in ast.walk(ast.parse(source)):
        by_name = isinstance(node, ast.Attribute) and node.attr in MEANS
        imported = (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and any(name.name in (*MEANS, "*") for name in node.names)
        )
        if by_name or imported:
            yield node.lineno


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['A']",
        "os.getenv('A')",
        "import os as system; system.environ.get('A')",
        "from os import environ as env",
        "os.environ['A'] = '1'",
    ],
)
def test_a_line_that_reads_the_environment_is_found(line: str) -> None:
    assert list(touched(line)) == [1]


def test_one_module_alone_reads_the_environment() -> None:
    found = {
        path.relative_to(SOURCES): lines
        for path in SOURCES.rglob("*.py")
        if (lines := list(touched(path.read_text(encoding="utf-8"))))
    }
    assert len(found.pop(READER)) > 10
    assert not found, "ask headrace.core.environment"


def test_all_variables_are_listed_and_all_that_are_listed_are_read() -> None:
    tree = ast.parse((SOURCES / READER).read_text(encoding="utf-8"))
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    read = {text for text in texts if re.fullmatch(r"[A-Z]+(_[A-Z]+)*", text)}
    page = (REPO / "docs" / "environment.md").read_text(encoding="utf-8")
    listed = re.findall(r"`([A-Z_]+)`", " ".join(re.findall(r"^\|([^|]+)\|", page, re.MULTILINE)))
    assert len(listed) == len(set(listed)) > 20
    assert set(listed) == read


@pytest.mark.parametrize("asked", ["soon", "0", "-1", "nan", "inf"])
@pytest.mark.parametrize(
    ("variable", "patience", "usual"),
    [
        ("HEADRACE_HOST_PATIENCE", environment.host_patience, 60),
        ("HEADRACE_STORAGE_PATIENCE", environment.storage_patience, 300),
    ],
)
def test_a_patience_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, asked: str, variable: str, patience: Callable[[], float], usual: float
) -> None:
    monkeypatch.delenv(variable, raising=False)
    assert patience() == usual
    monkeypatch.setenv(variable, asked)
    with pytest.raises(OptionError, match=variable):
        patience()
    monkeypatch.setenv(variable, "2.5")
    assert patience() == 2.5


@pytest.mark.parametrize(
    ("variable", "asked", "unset"),
    [
        ("HEADRACE_RECORD", environment.recording, True),
        ("HEADRACE_PROFILES", environment.profiling, True),
        ("HEADRACE_AFFINITY", environment.affinity, True),
        ("HEADRACE_RAILS", environment.rails, True),
        ("HEADRACE_SHARE", environment.sharing, None),
    ],
)
def test_switches(
    variable: str, asked: Callable[[], bool | str | None], unset: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    assert asked() is unset
    for value, said in {"": unset, "1": True, "yes": True, "0": False, "false": False, "no": False}.items():
        monkeypatch.setenv(variable, value)
        assert asked() is said, value


def test_a_directory_that_is_relative_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for value in ("", "here"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert environment.cache_home() == "/home/me/.cache"
        assert environment.state_home() == "/home/me/.local/state"
    monkeypatch.setenv("XDG_STATE_HOME", "/kept")
    assert environment.state_home() == "/kept"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, []),
        ({"SLURM_JOB_ID": "7"}, []),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, ["7", "0"]),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, ["a", "1"]),
        ({"TORCHELASTIC_RUN_ID": "tuesday", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, ["tuesday"]),
    ],
)
def test_what_a_launch_is_called(
    variables: dict[str, str], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert environment.launch() == said
