"""Where extents lie: in blocks that were granted, of the job's own cache or a shared one."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache.arena import Arena
from headrace.coordinate.messages import Order, OrderDone
from headrace.core.errors import OutOfSharedMemory
from headrace.core.forms import Form
from headrace.core.memory import total_memory
from headrace.core.sparse import resident
from headrace.engine.store import Cache, Grants, LocalStore

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
    assert store.take(order((2, 0, 100)), Form.DECODED, [10]) == [None]


def order(*blocks, number=1):
    return Order(number, 0, 0, 1, 0, 0, 0, 0, b"", grants=np.array(blocks, np.int64).tobytes())


def test_an_order_fills_the_blocks_that_it_was_granted_and_says_what_found_none(cache):
    store = LocalStore(cache)
    first, second = order((2, 0, 100), (2, 128, 200)), order((2, 512, 100), number=2)
    assert store.take(first, Form.DECODED, [150, 100]) == [128, 0]
    assert store.take(second, Form.DECODED, [120, 100]) == [None, 512]
    assert store.take(first, Form.DECODED, [10]) == [None]
    assert store.take(first, Form.ENCODED, [7]) == [None]
    done, other = OrderDone(1, []), OrderDone(2, [])
    store.finished(first, done)
    store.finished(second, other)
    assert (done.wanted, other.wanted) == ((7, 10, 0), (0, 120, 0))
    store.finished(ORDER, done)
    assert store.take(ORDER, Form.DECODED, [1]) == [None]


def test_where_memory_has_to_be_reserved_a_full_file_system_is_no_room(cache, monkeypatch):
    def full(offset, nbytes):
        if offset:
            raise OutOfSharedMemory("full")

    monkeypatch.setattr(cache.arena, "reserve", full)
    store = LocalStore(cache)
    assert store.take(order((2, 0, 100), (2, 128, 100)), Form.DECODED, [100, 100]) == [0, None]


def test_a_cache_has_more_addresses_than_there_is_memory_and_takes_none_of_it():
    cache = Cache.make()
    assert cache.span > total_memory() and resident(cache.arena.fd) == 0
    cache.arena.close()
