"""The allocator of addresses: blocks never overlap, and what is free can be had again."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinate.space import Space
from headrace.core.sparse import PAGE

ALIGN = 64
OPS = st.lists(st.tuples(st.booleans(), st.integers(1, 700)), max_size=80)


def rounded(nbytes: int) -> int:
    """As the allocator aligns it."""
    return -(-nbytes // ALIGN) * ALIGN


def check(space: Space, asked: dict[int, int]) -> None:
    """Blocks in use and free ones lie side by side, within the span."""
    assert len(space) == len(asked)
    used = [(offset, offset + space.size_of(offset)) for offset in asked]
    assert all(offset in space for offset in asked)
    assert all(end - start == rounded(asked[start]) for start, end in used)
    uncut = [(start, start + size) for start, size in space._uncut]
    ranges = [(0, 0), *sorted(used + space.free_blocks() + uncut), (space.span, space.span)]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges)), "nothing lost or twice"
    assert all(start % ALIGN == 0 for start, _ in ranges)


@given(st.integers(0, 8192), OPS)
@settings(deadline=None)
def test_blocks_never_overlap(span: int, ops: list[tuple[bool, int]]) -> None:
    space = Space(span, ALIGN)
    asked: dict[int, int] = {}
    for take, number in ops:
        if take:
            for offset in space.take(number, 1 + number % 3):
                assert offset not in asked
                asked[offset] = number
        elif asked:
            gone = sorted(asked)[number % len(asked)]
            del asked[gone]
            space.free([gone])
        check(space, asked)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from((40, 1000, 3136, 4000, 4096, 9000))), max_size=120))
@settings(deadline=None)
def test_small_blocks_share_pages_with_their_like_alone(ops: list[tuple[bool, int]]) -> None:
    space = Space(96 * PAGE)
    asked: dict[int, int] = {}
    for at, (take, nbytes) in enumerate(ops):
        if take:
            count = 1 + at % 7
            cost = space.cost(nbytes, count) if space.packs(nbytes) else 0
            slabs = sum(slab.nbytes for slab in space._slabs.values())
            found = space.take(nbytes, count)
            if space.packs(nbytes) and len(found) == count:
                assert sum(slab.nbytes for slab in space._slabs.values()) == slabs + cost
            asked.update(dict.fromkeys(found, nbytes))
        elif asked:
            gone = sorted(asked)[nbytes % len(asked)]
            del asked[gone]
            space.free([gone])
        blocks = sorted((offset, offset + space.size_of(offset)) for offset in asked)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(blocks))
        owners: dict[int, int] = {}
        for start, end in blocks:
            assert end - start >= asked[start]
            for page in range(start // PAGE, -(-end // PAGE)):
                assert page not in owners or owners[page] == end - start < PAGE
                owners[page] = end - start
        shares = {offset: space.share(size) for offset, size in asked.items() if space.packs(size)}
        held = sum(slab.nbytes for slab in space._slabs.values())
        assert space.idle == held - sum(shares.values()) >= 0
        for offset in shares:
            assert offset in space.mates(offset) and set(space.mates(offset)) <= set(asked)
    space.free(list(asked))
    assert not space._slabs and space.idle == 0 and len(space) == 0
    free = [end - start for start, end in space.free_blocks()] + [size for _, size in space._uncut]
    assert sum(free) == space.span


def test_a_block_that_was_freed_is_the_next_of_its_size() -> None:
    space = Space(1 << 20, ALIGN)
    assert space.take(1000, 3) == [0, 1024, 2048]
    space.free([1024])
    assert space.take(500) == [3072], "another size is cut from what was never used"
    assert space.take(1010, 2) == [1024, 3584]
    assert space.take(1010, 0) == []


def test_free_blocks_are_put_together_when_nothing_else_is_left() -> None:
    space = Space(64 * 100, ALIGN)
    assert len(space.take(64, 101)) == 100, "as many as there are"
    assert space.take(64) == [] and space.cuts == 0
    space.free(range(0, 64 * 20, 64))
    assert space.take(64 * 15) == [0] and space.cuts == 1
    assert space.take(64 * 6) == []
    assert space.take(64 * 5) == [64 * 15]
    assert space.free_blocks() == []


def test_free_blocks_are_put_together_only_if_there_is_much_to_gain() -> None:
    space = Space(64 * 160, ALIGN)
    space.take(64, 160)
    for freed in range(1, 10):
        space.free([64 * (freed - 1)])
        assert space.take(64 * 2) == [] and space.cuts == 0
    space.free([64 * 9])
    assert len(space.take(64 * 2)) == 1 and space.cuts == 1


@pytest.mark.parametrize("seed", range(3))
def test_many_blocks_of_many_sizes_come_and_go(seed: int) -> None:
    draw = random.Random(seed)
    span = 1 << 22
    space, live = Space(span, ALIGN), dict[int, int]()
    for turn in range(4):
        refused = 0
        while refused < 50:
            nbytes = draw.randint(1, 8000)
            found = space.take(nbytes)
            refused += not found
            live.update(dict.fromkeys(found, nbytes))
        check(space, live)
        assert sum(map(rounded, live.values())) > 0.8 * span, "little is lost, even when addresses are scarce"
        for offset in draw.sample(sorted(live), len(live) * (3 - turn) // 4 if turn < 3 else len(live)):
            space.free([offset])
            del live[offset]
    assert space.cuts > 0 and space.take(span) == [0]


def test_what_cannot_be_is_refused() -> None:
    for arguments in ((-1,), (100, 48), (100, 0)):
        with pytest.raises(ValueError):
            Space(*arguments)
    space = Space(1024, ALIGN)
    assert space.take(100) == [0]
    for nbytes in (0, -5):
        with pytest.raises(ValueError):
            space.take(nbytes)
    for wrong in (64, 128):
        with pytest.raises(KeyError):
            space.free([wrong])
        with pytest.raises(KeyError):
            space.size_of(wrong)
    space.free([0])
    with pytest.raises(KeyError):
        space.free([0])


def test_what_a_block_does_not_need_is_given_to_others() -> None:
    space = Space(1024, ALIGN)
    (block,) = space.take(1024)
    assert space.take(64) == []
    space.shrink(block, 100)
    assert space.size_of(block) == 128
    others = space.take(64, 100)
    assert sorted(others) == list(range(128, 1024, 64))
    space.shrink(block, 200)
    assert space.size_of(block) == 128, "it does not grow"
