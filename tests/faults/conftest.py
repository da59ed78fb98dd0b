"""Every test here is a fault, and none may leave a process behind."""

import signal
from pathlib import Path

import pytest

from tests.loader.conftest import _no_processes_left  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.faults)


@pytest.fixture(autouse=True, scope="session")
def _interrupts_arrive() -> None:
    """Processes that a shell started in the background ignore SIGINT, and so would all that the tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
