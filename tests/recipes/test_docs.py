"""The examples of docs/recipes.md run, one after the other, as a reader would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headrace
from tests.recipes.helpers import jpeg, picture

DOCS = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        place = tmp_path / "train" / ("cat" if number % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.jpg").write_bytes(jpeg(picture(200 + number, 260, number)))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    space: dict[str, object] = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), space)


def test_every_image_step_is_described() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name in headrace.image.__all__:
        assert name == "normalize" or f"{name}(" in text, name
