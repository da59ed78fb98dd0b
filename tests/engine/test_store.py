"""Where extents lie: the job's own arena, and blocks that a service granted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache.arena import Arena
from headrace.coordinate.messages import Order
from headrace.core.forms import Form
from headrace.engine.board import Board
from headrace.engine.store import Grants, LocalStore

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
def parts():
    arena = Arena()
    board = Board(arena)
    cache = arena.allocate(4096, reserve=False)
    yield arena, board, cache
    board.close()
    arena.close()


def test_extents_outside_of_the_cache_are_refused(parts):
    store = LocalStore(*parts)
    start, size = parts[2]
    assert len(store.extent(ORDER, start, size)) == size
    assert len(store.extent(ORDER, start + size, 0)) == 0
    for offset, nbytes in ((start - 1, 1), (start, size + 1), (start + size, 1), (start, -1), (-1, 0)):
        with pytest.raises(ValueError, match="outside of the cache"):
            store.extent(ORDER, offset, nbytes)


def test_without_a_cache_every_extent_is_outside(parts):
    with pytest.raises(ValueError, match="outside of the cache"):
        LocalStore(parts[0], parts[1], None).extent(ORDER, 0, 1)


def test_extents_are_taken_until_the_budget_is_used_up(parts):
    arena, board, cache = parts
    board.set_cache(Form.DECODED, cache[0], 256)
    store = LocalStore(arena, board, cache)
    assert store.take(ORDER, None, Form.DECODED, [100, 1]) == [cache[0], cache[0] + 128]
    assert store.take(ORDER, None, Form.DECODED, [65, 64]) == [None, cache[0] + 192]
    assert store.take(ORDER, None, Form.AUGMENTED, [1]) == [None]
