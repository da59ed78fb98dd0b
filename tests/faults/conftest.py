"""Every test here is a fault, and none may leave a process behind."""

from pathlib import Path

import pytest

from tests.loader.conftest import _no_processes_left  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.faults)
