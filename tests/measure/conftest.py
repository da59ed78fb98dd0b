"""Profiles of tests are kept in a place of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.helpers import jpeg, picture


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where profiles are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "headrace" / "profiles"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A small folder of images in two classes."""
    root = tmp_path / "photos"
    for number in range(24):
        place = root / ("cat" if number % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:03}.jpg").write_bytes(jpeg(picture(120 + number, 160, number)))
    return root
