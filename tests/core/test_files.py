"""Files that are written as a whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from headrace.core.files import write_json


def test_the_new_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    for value in ({"a": [1, 2]}, {"b": "c"}):
        write_json(path, value)
        assert msgspec.json.decode(path.read_bytes()) == value
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o077 == 0


def test_what_cannot_be_written_leaves_the_old_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    write_json(path, 1)
    with pytest.raises(TypeError):
        write_json(path, object())
    assert path.read_bytes() == b"1\n" and os.listdir(tmp_path) == ["some.json"]


def test_what_cannot_be_put_in_place_is_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.mkdir()
    with pytest.raises(OSError):
        write_json(path, 1)
    assert os.listdir(tmp_path) == ["some.json"]
