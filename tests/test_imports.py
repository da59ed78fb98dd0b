"""The check for import circles finds them, those that are there for types alone included."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grimp", reason="needs import-linter, which brings grimp")
SCRIPT = Path(__file__).parents[1] / "scripts" / "check_imports.py"
TYPES = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "


def check(folder: Path, modules: dict[str, str]) -> tuple[int, list[str]]:
    """What it says of a package of these modules."""
    for name, text in modules.items():
        path = folder / "tried" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), "tried"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not ran.stderr
    return ran.returncode, ran.stdout.splitlines()


@pytest.mark.parametrize(
    "back", ["import tried.first", "from tried import first", TYPES + "from tried.first import name"]
)
def test_a_circle_is_found(tmp_path: Path, back: str) -> None:
    modules = {"__init__": "", "first": "import tried.second", "second": "import tried.third", "third": back}
    assert check(tmp_path, modules) == (
        1,
        ["import circle: tried.first -> tried.second -> tried.third -> tried.first"],
    )


def test_modules_in_a_row_pass(tmp_path: Path) -> None:
    modules = {
        "__init__": "",
        "first": "import tried.second\nimport tried.third",
        "second": TYPES + "import tried.third",
        "third": "import os",
    }
    assert check(tmp_path, modules) == (0, ["No import circle in tried"])


def test_a_circle_by_way_of_the_package_is_found(tmp_path: Path) -> None:
    modules = {"__init__": "from tried.first import name", "first": "from tried import name"}
    assert check(tmp_path, modules) == (1, ["import circle: tried -> tried.first -> tried"])
