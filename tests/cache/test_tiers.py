"""What holds for every tier of a cache: the arena, and a file on disk."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.cache.arena import Arena
from headrace.cache.tiers import CacheTier, TierMemory
from headrace.core.sparse import PAGE
from headrace.engine.store import Cache
from tests.cache.file_tier import FileTier

SPAN = 16 * PAGE


@pytest.fixture(params=["arena", "file"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CacheTier]:
    """Each tier that there is."""
    if request.param == "file":
        yield FileTier.make(str(tmp_path / "cache"), SPAN)
        return
    arena = Arena()
    os.ftruncate(arena.fd, SPAN)
    yield Cache(arena, SPAN, budget=SPAN)
    arena.close()


def write(memory: TierMemory, offset: int, content: bytes) -> bool:
    """An extent of that content; whether there was room."""
    (room,) = memory.take([(offset, len(content))])
    if room is None:
        return False
    assert len(room) == len(content) and not room.readonly
    room[:] = content
    memory.settle(offset, room)
    return True


def test_what_is_settled_is_read_by_others(tier: CacheTier) -> None:
    writer, reader = tier.open(), tier.open()
    first, second = writer.take([(64, 10), (PAGE + 64, PAGE)])
    assert first is not None and second is not None
    first[:], second[:] = b"0123456789", bytes([7]) * PAGE
    writer.settle(64, first)
    writer.settle(PAGE + 64, second)
    assert bytes(reader.extent(64, 10)) == b"0123456789" == bytes(writer.extent(64, 10))
    assert bytes(reader.extent(PAGE + 64, PAGE)) == bytes([7]) * PAGE
    assert write(reader, 64, b"abc") and bytes(writer.extent(64, 3)) == b"abc"
    writer.close()
    assert bytes(reader.extent(64, 3)) == b"abc", "it is there for the others"
    reader.close()


def test_what_is_outside_is_refused_and_no_room(tier: CacheTier) -> None:
    memory = tier.open()
    for offset, nbytes in ((-1, 1), (0, SPAN + 1), (SPAN, 1), (0, -1), (-5, 2), (SPAN - 1, 2)):
        with pytest.raises(ValueError, match="outside of the cache"):
            memory.extent(offset, nbytes)
        if nbytes > 0:
            assert memory.take([(offset, nbytes)]) == [None]
    fits, over = memory.take([(SPAN - 8, 8), (SPAN - 8, 9)])
    assert fits is not None and over is None, "one that has no room does not cost another its own"
    memory.close()


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 15), st.binary(min_size=1, max_size=200), st.booleans()), max_size=20)
)
def test_extents_hold_what_was_settled_last(tier: CacheTier, writes: list[tuple[int, bytes, bool]]) -> None:
    memories = [tier.open(), tier.open()]
    expected: dict[int, bytes] = {}
    for page, content, second in writes:
        assert write(memories[second], page * PAGE, content)
        expected[page] = content
    for memory in memories:
        for page, content in expected.items():
            assert bytes(memory.extent(page * PAGE, len(content))) == content
        memory.close()


def test_a_tier_travels(tmp_path: Path) -> None:
    tier = FileTier.make(str(tmp_path / "cache"), SPAN)
    memory, other = tier.open(), pickle.loads(pickle.dumps(tier)).open()
    assert write(memory, 0, b"x") and bytes(other.extent(0, 1)) == b"x"


def test_what_a_file_has_lost_cannot_be_read(tmp_path: Path) -> None:
    tier = FileTier.make(str(tmp_path / "cache"), SPAN)
    memory = tier.open()
    assert write(memory, 0, b"kept") and write(memory, PAGE, b"lost")
    os.truncate(tier.path, PAGE + 2)
    assert bytes(memory.extent(0, 4)) == b"kept"
    with pytest.raises(ValueError, match="cut off"):
        memory.extent(PAGE, 4)
