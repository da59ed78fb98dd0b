"""A private host for each test, as where jobs share."""

from __future__ import annotations

import pytest

from tests import prepared
from tests.sharing.fixtures import place

__all__ = ["interpreter", "place"]


@pytest.fixture(scope="package", autouse=True)
def interpreter() -> None:
    """What launches are forked from. It stays, so it must not be taken for something that a test has left."""
    prepared.connect()
