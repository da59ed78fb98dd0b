"""A bucket for tests: a real one, in a server of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sources.fault_proxy import FaultProxy, fault_proxy
from tests.sources.s3_server import S3Server, running


@pytest.fixture
def s3() -> S3Server:
    return running()


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(s3.port) as made:
        yield made
