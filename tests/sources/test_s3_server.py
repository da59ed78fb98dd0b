"""The server of tests outlives what tests do to the process that started it."""

from __future__ import annotations

import atexit
import os

import pytest

from tests.sources.s3_server import S3Server


@pytest.mark.parametrize("end", [atexit._run_exitfuncs, atexit._clear])
def test_a_child_that_ends_takes_no_server_with_it(s3: S3Server, end: object) -> None:
    """Generators are left, and so the server was ended, where a child drops what was registered for its end."""
    child = os.fork()
    if not child:
        try:
            end()  # type: ignore[operator]
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    s3.check()
    s3.put("tests/children", {"still": b"there"})
