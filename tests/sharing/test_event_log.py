"""What a real host was told, and what it answered, is replayed to the same answers."""

from __future__ import annotations

import io
import os
from pathlib import Path

import msgspec
import pytest

from headrace.coordinate.event_log import replay
from headrace.host import control
from tests.loader.helpers import wait_until
from tests.sharing.fixtures import Start, processes_of

EVENTS = int(os.environ.get("HEADRACE_EVENTS", "2000"))
"""That are recorded, about; more of them take longer."""
pytestmark = pytest.mark.slow


def test_a_real_run_is_replayed_to_the_same_answers(start: Start, place: Path, tmp_path: Path) -> None:
    """Three jobs with a cache that is too small, and one that is killed: much happens."""
    log = tmp_path / "events"
    environment = {"HEADRACE_HOST_EVENTS": str(log)}
    data = {"size": 301, "augment": "stamp"}
    # an epoch of a job is 301 / 4 draws; those that are given one by one are asked for and reported
    epochs = max(2, EVENTS // (3 * 76))
    terms = {"cache": 60_000}
    jobs = [
        start(environment, data=data, loader={**terms, "batch_size": batch}, epochs=epochs)
        for batch in (4, 3, 5)
    ]
    victim = start(environment, data=data, loader=terms, epochs=1000)
    victim.until("epoch")
    victim.kill()
    for job in jobs:
        job.end()
        job.check()
    control.stop()
    assert wait_until(lambda: not processes_of(place), 20)
    content = log.read_bytes()
    replayed = replay(io.BytesIO(content))
    # (with many CPUs much is dealt out in stretches, of which each is one event)
    assert replayed.events >= EVENTS // 8 and not replayed.different
    assert replayed.commons.state.decodes > 301
    # A log that was cut off is replayed as far as it goes; one that is not true is seen to be so.
    assert 0 < replay(io.BytesIO(content[: len(content) // 2])).events < replayed.events
    assert replay(io.BytesIO(damaged(content))).different


def damaged(content: bytes) -> bytes:
    """The same log, but of hosts that choose in another way."""
    length = int.from_bytes(content[:4], "little")
    start = msgspec.msgpack.decode(content[4 : 4 + length])
    start[2] = bytes(8)
    head = msgspec.msgpack.encode(start)
    return len(head).to_bytes(4, "little") + head + content[4 + length :]
