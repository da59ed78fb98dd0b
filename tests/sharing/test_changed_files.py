"""Files that are changed in place between two jobs, while the host still holds what they were before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.recipes.subset import SubsetSource

COUNT, BYTES = 12, 32
Make = Callable[[Path], Any]

SOURCES: dict[str, Make] = {
    "folder": lambda path: hr.folder(path, labels=False, extensions=None),
    "files": lambda path: hr.files(sorted(path.iterdir()), list(range(COUNT))),
    "paths": lambda path: hr.files(sorted(path.iterdir()), encoded=False),
    "subset": lambda path: SubsetSource(hr.folder(path, labels=False, extensions=None), range(COUNT)),
    "manifest": lambda path: hr.folder(path, manifest=path.parent / "labels.csv"),
}


def decode(data: Any) -> np.ndarray[Any, Any]:
    """The first bytes of a file, given its content or its path."""
    data = bytes(data)
    if data.startswith(b"/"):
        data = Path(os.fsdecode(data)).read_bytes()
    return np.frombuffer(data[:BYTES], np.uint8).copy()


def write(path: Path, number: int, letter: bytes, nbytes: int = BYTES) -> None:
    """A file full of one letter. Its time does not depend on the clock's ticks."""
    file = path / f"{number:02d}"
    file.write_bytes(letter * nbytes)
    os.utime(file, ns=(0, 10**18 + letter[0]))


def letters(loader: hr.DataLoader) -> str:
    """What each sample is full of, in any order."""
    found = []
    for batch in loader:
        values = batch[0] if isinstance(batch, (list, tuple)) else batch
        rows = values.numpy()
        assert (rows == rows[:, :1]).all()
        found += [chr(row[0]) for row in rows]
    return "".join(sorted(found))


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("again", ["new source", "same source"])
def test_what_was_changed_is_read_anew_and_the_rest_is_not(
    place: Path, tmp_path: Path, kind: str, again: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(COUNT):
        write(data, number, b"o")
    (tmp_path / "labels.csv").write_text("".join(f"{number:02d},{number}\n" for number in range(COUNT)))
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "share": True, "cache": "8MiB"}
    source = SOURCES[kind](data)
    with hr.DataLoader(hr.Recipe(source, decode), num_workers=0, **options) as loader:
        assert letters(loader) == "o" * COUNT
        write(data, 0, b"s")  # the same size, another time
        write(data, 1, b"l", 2 * BYTES)
        os.utime(data / "01", ns=(0, 10**18 + ord("o")))  # another size, the same time
        now = source if again == "same source" else SOURCES[kind](data)
        with hr.DataLoader(hr.Recipe(now, decode), num_workers=0, **options) as other:
            assert letters(other) == "l" + "o" * (COUNT - 2) + "s"
            assert other.stats().decoded == 2, "the others are still shared"


@pytest.mark.parametrize("kind", ["folder", "files", "subset"])
def test_a_change_does_not_cost_what_was_measured(tmp_path: Path, kind: str) -> None:
    for number in range(COUNT):
        write(tmp_path, number, b"o")
    recipe = hr.Recipe(SOURCES[kind](tmp_path), decode)
    before = recipe.profile_key, recipe.fingerprint(hr.Form.DECODED)
    write(tmp_path, 0, b"s")
    recipe = hr.Recipe(SOURCES[kind](tmp_path), decode)
    assert recipe.profile_key == before[0]
    assert recipe.fingerprint(hr.Form.DECODED) != before[1]
