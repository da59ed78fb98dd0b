"""A store of its own for each test, and a web server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.datastore.server import Web, web


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the store."""
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path / "store"))
    monkeypatch.setenv("HEADRACE_STORAGE_PATIENCE", "5")
    return tmp_path / "store"


@pytest.fixture
def server() -> Iterator[Web]:
    with web() as running:
        yield running
