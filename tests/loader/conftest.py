"""No test of the loader leaves a process behind."""

import gc
from collections.abc import Iterator

import pytest

from tests.loader.helpers import descendants, jpeg_folder, wait_until


@pytest.fixture(autouse=True)
def _no_processes_left() -> Iterator[None]:
    before = {process.pid for process in descendants()}
    yield
    gc.collect()

    def left() -> list[str]:
        # multiprocessing's own two helpers stay for the life of the process.
        own = ("forkserver", "resource_tracker")
        return [
            " ".join(process.cmdline())
            for process in descendants()
            if process.pid not in before and not any(word in " ".join(process.cmdline()) for word in own)
        ]

    assert wait_until(lambda: not left(), 10), f"still running: {left()}"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """A folder of small JPEG images, 24 in 3 classes."""
    return jpeg_folder(tmp_path_factory.mktemp("images"))
