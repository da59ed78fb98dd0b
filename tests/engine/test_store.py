"""Where extents lie: in blocks that were granted, of the job's own cache or a shared one."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache.arena import Arena
from headrace.coordinate.grants import Grants
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.addresses import Tier, pack
from headrace.core.errors import OutOfSharedMemory
from headrace.core.forms import Form
from headrace.core.memory import total_memory
from headrace.core.sparse import resident
from headrace.engine.store import Cache, LocalStore
from tests.cache.file_tier import FileTier
from tests.engine.rig import places

ORDER = Order(1, 0, 0, 1, 0, 0, 0, 0, b"")


def grants(*rows):
    return Grants(np.array(rows, np.int64).reshape(-1, 3).tobytes())


def test_a_size_gets_the_smallest_block_that_holds_it_and_each_block_once():
    blocks = grants((2, 500, 300), (2, 100, 100), (2, 300, 200), (3, 900, 100))
    assert blocks.take(Form.DECODED, [150, 100, 301]) == [300, 100, None]
    assert blocks.wanted == {Form.DECODED: 301}
    assert blocks.take(Form.DECODED, [1, 1]) == [500, None]
    assert blocks.take(Form.ENCODED, [5, 7, 6]) == [None] * 3
    assert blocks.take(Form.AUGMENTED, [100]) == [900]
    assert blocks.wanted == {Form.DECODED: 301, Form.ENCODED: 7}


def test_an_order_without_grants_gets_none():
    assert Grants(b"").take(Form.DECODED, [1]) == [None]
    assert Grants(b"").take(Form.DECODED, []) == []


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, 9)), max_size=12),
    st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.lists(st.integers(0, 9), max_size=4)), max_size=6),
)
def test_grants_are_the_best_fit(blocks, wants):
    left = [(form, at * 64, capacity) for at, (form, capacity) in enumerate(blocks)]
    under_test = grants(*left)
    wanted = {}
    for form, sizes in wants:
        expected = []
        for size in sizes:
            fitting = [block for block in left if block[0] == form and block[2] >= size]
            best = min(fitting, key=lambda block: (block[2], block[1]), default=None)
            if best is None:
                wanted[form] = max(size, wanted.get(form, 0))
            else:
                left.remove(best)
            expected.append(None if best is None else best[1])
        assert under_test.take(Form(form), sizes) == expected
    assert under_test.wanted == wanted


@pytest.fixture
def cache():
    arena = Arena()
    os.ftruncate(arena.fd, 4096)
    yield Cache(arena, 4096)
    arena.close()


def test_extents_outside_of_the_cache_are_refused(cache):
    store = LocalStore(cache)
    assert len(store.extent(ORDER, 0, 4096)) == 4096
    assert len(store.extent(ORDER, 4096, 0)) == 0
    for offset, nbytes in ((-1, 1), (0, 4097), (4096, 1), (0, -1), (-1, 0)):
        with pytest.raises(ValueError, match="outside of the cache"):
            store.extent(ORDER, offset, nbytes)


def test_without_a_cache_every_extent_is_outside():
    store = LocalStore(None)
    with pytest.raises(ValueError, match="outside of the cache"):
        store.extent(ORDER, 0, 1)
    assert places(store.take(order((2, 0, 100)), Form.DECODED, [10])) == [None]


def order(*blocks, number=1):
    return Order(number, 0, 0, 1, 0, 0, 0, 0, b"", grants=np.array(blocks, np.int64).tobytes())


def test_an_order_fills_the_blocks_that_it_was_granted_and_says_what_found_none(cache):
    store = LocalStore(cache)
    first, second = order((2, 0, 100), (2, 128, 200)), order((2, 512, 100), number=2)
    assert places(store.take(first, Form.DECODED, [150, 100])) == [128, 0]
    assert places(store.take(second, Form.DECODED, [120, 100])) == [None, 512]
    assert places(store.take(first, Form.DECODED, [10])) == [None]
    assert places(store.take(first, Form.ENCODED, [7])) == [None]
    done, other = OrderDone(1, []), OrderDone(2, [])
    store.finished(first, done)
    store.finished(second, other)
    assert (done.wanted, other.wanted) == ((7, 10, 0), (0, 120, 0))
    store.finished(ORDER, done)
    assert places(store.take(ORDER, Form.DECODED, [1])) == [None]


def test_where_memory_has_to_be_reserved_a_full_file_system_is_no_room(cache, monkeypatch):
    def full(offset, nbytes):
        if offset:
            raise OutOfSharedMemory("full")

    monkeypatch.setattr(cache.arena, "reserve", full)
    store = LocalStore(cache)
    assert places(store.take(order((2, 0, 100), (2, 128, 100)), Form.DECODED, [100, 100])) == [0, None]


def test_a_cache_has_more_addresses_than_there_is_memory_and_takes_none_of_it():
    cache = Cache.make()
    assert cache.span > total_memory() and resident(cache.arena.fd) == 0
    cache.arena.close()


@pytest.fixture
def tiered(cache, tmp_path):
    cache.beside = {Tier.DISK: FileTier.make(str(tmp_path / "cache"), 4096)}
    return cache


def test_an_address_is_resolved_by_its_tier(tiered):
    store = LocalStore(tiered)
    disk = pack(Tier.DISK, 128)
    granted = order((2, 128, 100), (2, disk, 200))
    (small, large) = store.take(granted, Form.DECODED, [100, 150])
    assert (small[0], large[0]) == (128, disk)
    small[1][:], large[1][:] = bytes([1]) * 100, bytes([2]) * 150
    done = OrderDone(1, [], np.array([(0, 2, 128, 100), (1, 2, disk, 150)], np.int64).tobytes())
    store.finished(granted, done)
    assert len(done.published) == 2 * 32
    for reader in (store, LocalStore(tiered)):
        assert bytes(reader.extent(ORDER, 128, 100)) == bytes([1]) * 100
        assert bytes(reader.extent(ORDER, disk, 150)) == bytes([2]) * 150


def test_what_is_given_up_is_not_written(tiered):
    store, disk = LocalStore(tiered), pack(Tier.DISK, 0)
    granted = order((2, disk, 100))
    ((_, memory),) = store.take(granted, Form.DECODED, [100])
    memory[:] = bytes([9]) * 100
    store.finished(granted, OrderDone(1, []))
    assert bytes(store.extent(ORDER, disk, 100)) == bytes(100)


def test_what_cannot_be_written_is_not_published(tiered, monkeypatch):
    store, disk = LocalStore(tiered), pack(Tier.DISK, 0)
    granted = order((2, disk, 100), (2, disk + 128, 100), (2, 0, 50))
    store.take(granted, Form.DECODED, [100, 100, 50])
    rows = [(0, 2, disk, 100), (1, 2, disk + 128, 100), (2, 2, 0, 50)]
    written = []

    def full(fd, memory, offset):
        written.append(offset)
        return len(memory) if offset else len(memory) // 2

    monkeypatch.setattr(os, "pwrite", full)
    done = OrderDone(1, [], np.array(rows, np.int64).tobytes())
    store.finished(granted, done)
    assert written == [0, 128]
    assert np.frombuffer(done.published, np.int64).reshape(-1, 4).tolist() == [list(row) for row in rows[1:]]


def test_a_tier_that_is_not_here_has_neither_extents_nor_room(tiered):
    store = LocalStore(tiered)
    for tier in (Tier.PEER, Tier.DEVICE):
        with pytest.raises(ValueError, match="outside of the cache"):
            store.extent(ORDER, pack(tier, 0), 1)
        assert store.take(order((2, pack(tier, 0), 100), number=tier), Form.DECODED, [10]) == [None]
    for number in (-1, -(1 << 63), (1 << 63) - 1, 77 << 56):
        with pytest.raises(ValueError, match="outside of the cache"):
            store.extent(ORDER, number, 1)


def test_what_is_read_beside_the_arena_is_told_with_its_order(tiered):
    store = LocalStore(tiered)
    first, second = (Order(number, 0, 0, 1, 0, 0, 0, 0, b"") for number in (1, 2))
    store.extent(first, 0, 100)
    store.extent(first, pack(Tier.DISK, 0), 100)
    store.extent(first, pack(Tier.DISK, 256), 200)
    store.extent(second, pack(Tier.DISK, 0), 50)
    with pytest.raises(ValueError, match="outside of the cache"):
        store.extent(second, pack(Tier.DISK, 4096), 50)
    told = [OrderDone(order.id, []) for order in (second, first, first)]
    for order, done in zip((second, first, first), told, strict=True):
        store.finished(order, done)
    assert [[(tier, nbytes) for tier, nbytes, _ in done.read] for done in told] == [
        [(Tier.DISK, 50)],
        [(Tier.DISK, 300)],
        [],
    ]
    assert all(seconds >= 0 for done in told for _, _, seconds in done.read)
