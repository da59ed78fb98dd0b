"""The README's picture is what the committed results say, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import picture

MACHINE = {"cpu": "A CPU", "cpus": 2}


def single(**rates: float) -> dict[str, Any]:
    contenders = [
        {"name": name, "label": name, "summary": {"later_images_s": {"median": rate}}}
        for name, rate in rates.items()
    ]
    return {
        "machine": MACHINE,
        "contenders": [*contenders, {"name": "dali", "label": "dali", "reason": "absent"}],
    }


def test_picture_and_text_are_those_of_the_committed_results() -> None:
    drawing, text = picture.make()
    assert drawing == picture.PICTURE.read_text(), "run `make readme-picture`"
    assert picture.IN_README.findall(picture.README.read_text()) == [text], "run `make readme-picture`"
    numbers = re.findall(r">([\d,]+)(?:  \(|<)", drawing)
    assert len(numbers) >= 9 and set(numbers) <= set(re.findall(r"\d[\d,]*\d", text))


def test_what_was_not_measured_is_left_out() -> None:
    result = single(**{"torch-opencv": 100.0, "spdl": 120.0, "headrace": 300.0})
    (panel,) = picture.panels(result, None, None)
    assert [(bar.label, bar.ours) for bar in panel.bars] == [
        ("torch-opencv", False),
        ("spdl", False),
        ("headrace", True),
    ]
    assert picture.panels(single(headrace=1.0), None, None) == []
    assert picture.panels(None, None, None) == []


def test_bars_are_as_long_as_their_numbers() -> None:
    found = [picture.Panel("a < b", (picture.Bar("x", 50.0), picture.Bar("y", 200.0, ours=True)))]
    drawing = ElementTree.fromstring(picture.draw(found, "foot & all"))
    widths = [float(rect.attrib["width"]) for rect in drawing.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[1] == pytest.approx(4 * widths[0], abs=0.1)
    texts = [text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["a < b", "x", "50", "y", "200  (4.0x)", "foot & all"]


def test_results_of_two_machines_are_refused(tmp_path: Path) -> None:
    (tmp_path / "single.json").write_text(json.dumps(single(headrace=1.0)))
    other = {"machine": {**MACHINE, "cpus": 64}, "cases": [], "contenders": []}
    (tmp_path / "sharing.json").write_text(json.dumps(other))
    with pytest.raises(SystemExit, match="not of one machine"):
        picture.make(tmp_path)
