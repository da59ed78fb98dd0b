"""What docs/store.md says: its commands and its program run, and it names all commands."""

from __future__ import annotations

import argparse
import importlib
import io
import re
import sys
from pathlib import Path

import pytest

from headrace.cli import data as command
from headrace.cli import main
from tests.datastore.archives import tar
from tests.datastore.server import Web

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs" / "store.md").read_text(encoding="utf-8")


def pictures() -> dict[str, bytes]:
    sys.path.insert(0, str(REPO / "examples"))
    try:
        made = importlib.import_module("_data")
    finally:
        sys.path.pop(0)
    return {f"train/class_{n % 2}/{n}.jpg": made.picture(n) for n in range(8)}


def test_the_example_runs(root: Path, server: Web, capsys: pytest.CaptureFixture[str]) -> None:
    server.files["flowers.tar.gz"] = tar(pictures(), "w:gz")
    commands, program = re.findall(r"^```(?:python)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[:2]
    for line in commands.splitlines():
        words = line.replace("https://example.org/", server.url("")).split()
        assert words[0] == "headrace" and main(words[1:]) == 0, capsys.readouterr().err
    assert "flowers: 8 files" in capsys.readouterr().out
    names: dict[str, object] = {}
    exec(compile(program, "store.md", "exec"), names)
    recipe = names["train"]
    assert len(recipe.source) == 8 and recipe.source.classes == ["class_0", "class_1"]  # type: ignore[attr-defined]


def test_the_page_has_all_commands_and_no_others() -> None:
    parser = argparse.ArgumentParser()
    command.describe(parser)
    out = io.StringIO()
    parser.print_help(out)
    known = set(re.findall(r"^    (\w+) ", out.getvalue(), re.MULTILINE))
    assert known >= {"add", "list", "path", "pin", "unpin", "evict", "remove", "verify", "quota"}
    listed = set(re.findall(r"`headrace data (\w+)", PAGE)) | {"unpin"}
    assert listed == known
