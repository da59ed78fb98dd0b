"""No test of the loader leaves a process behind."""

import gc
from collections.abc import Iterator

import pytest

from tests.loader.helpers import descendants, jpeg_folder, wait_until


@pytest.fixture(autouse=True)
def _no_processes_left() -> Iterator[None]:
    before = set(descendants())
    yield

    def left() -> set[int]:
        return set(descendants()) - before

    if left():
        gc.collect()
    assert wait_until(lambda: not left(), 10), f"still running: {left()}"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """A folder of small JPEG images, 24 in 3 classes."""
    return jpeg_folder(tmp_path_factory.mktemp("images"))
