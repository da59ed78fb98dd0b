"""A job's own cache: each sample enters at its most prepared form, lasts in one, and is counted once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinate.directory import Directory, TierTerms
from headrace.coordinate.messages import Order, OrderDone
from headrace.coordinate.savings import PRIOR
from headrace.core.addresses import Tier, unpack
from headrace.core.forms import CACHEABLE, Form
from headrace.core.sparse import PAGE
from headrace.planning import Spent

ENCODED, DECODED = 1 << Form.ENCODED, 1 << Form.DECODED
SPAN = 1 << 40
SIZES = {Form.ENCODED: PAGE, Form.DECODED: 4 * PAGE}
"""Bytes of an extent that is prepared as it should: multiples of what memory is given out in."""
_numbers = itertools.count()


def budgets(encoded: int = 0, decoded: int = 0) -> dict[Form, int]:
    """For so many samples of each form."""
    return {Form.ENCODED: encoded * SIZES[Form.ENCODED], Form.DECODED: decoded * SIZES[Form.DECODED]}


def directory(size: int = 10, **room: int) -> Directory:
    """One that knows how large extents are."""
    made = Directory(size, budgets(**room), SPAN)
    for shelf in made._shelves.values():
        shelf.learn([SIZES[shelf.form]])
    return made


def ordered(directory: Directory, *samples: int, again: bool = False) -> Order:
    """An order over these samples, dressed."""
    order = Order(next(_numbers), 0, 0, 1, 0, 0, 0, 0, np.array(samples, np.int64).tobytes())
    directory.dress(order, None, again=again)
    return order


def forms(order: Order) -> list[int]:
    return list(order.forms)


def keep(order: Order) -> list[int]:
    return list(order.keep)


def grants(order: Order) -> list[tuple[int, int, int]]:
    return [tuple(row) for row in np.frombuffer(order.grants, np.int64).reshape(-1, 3).tolist()]


def finish(
    directory: Directory, order: Order, *, only: set[int] | None = None, size: int = 0
) -> dict[tuple[int, Form], int]:
    """Publish what an order was to keep; ``only``: of these rows. Returns offsets by sample and form."""
    left = grants(order)
    rows = []
    found = {}
    for row, bits in enumerate(order.keep):
        for form in CACHEABLE:
            if bits & (1 << form):
                at = next(at for at, (kind, _, _) in enumerate(left) if kind == form)
                _, offset, capacity = left.pop(at)
                if only is None or row in only:
                    nbytes = size or SIZES[form]
                    assert nbytes <= capacity
                    rows.append((row, int(form), offset, nbytes))
                    found[int(order.index_array()[row]), form] = offset
    published = np.array(rows, np.int64).tobytes()
    directory.done(order, OrderDone(order.id, [], published=published))
    return found


def test_nothing_is_cached_without_a_budget() -> None:
    for made in (Directory(10, {}), Directory(10, dict.fromkeys(CACHEABLE, 0))):
        order = ordered(made, 1, 2)
        assert (order.forms, order.keep, order.grants) == (b"", b"", b"")
        made.done(order, OrderDone(order.id, []))
        assert not any(made.samples.values()) and not any(made.hits.values())


def test_a_sample_lasts_decoded_while_there_is_room_and_then_encoded() -> None:
    made = directory(encoded=2, decoded=1)
    order = ordered(made, 1, 2, 3, 4)
    assert keep(order) == [DECODED, ENCODED, ENCODED, 0]
    places = finish(made, order)
    order = ordered(made, 4, 3, 1, 2)
    assert forms(order) == [Form.NONE, Form.ENCODED, Form.DECODED, Form.ENCODED]
    offsets = np.frombuffer(order.offsets, np.int64).tolist()
    assert offsets == [-1, places[3, Form.ENCODED], places[1, Form.DECODED], places[2, Form.ENCODED]]
    assert np.frombuffer(order.lengths, np.int64).tolist() == [0, PAGE, 4 * PAGE, PAGE]
    assert keep(order) == [0, 0, 0, 0] and not order.grants


def test_a_pending_sample_is_asked_for_once_and_again_after_it_failed() -> None:
    made = directory(decoded=9)
    first = ordered(made, 1, 2)
    assert keep(first) == [DECODED] * 2
    beside = ordered(made, 2, 3)
    assert keep(beside) == [0, DECODED]
    finish(made, first, only={0})
    assert keep(ordered(made, 1, 2)) == [0, DECODED]


def test_what_a_lost_order_was_granted_is_granted_to_others() -> None:
    made = directory(decoded=2)
    lost = ordered(made, 1, 2)
    assert not any(keep(ordered(made, 3, 4)))
    made.lost(lost)
    assert keep(ordered(made, 3, 4)) == [DECODED] * 2
    made.lost(lost)
    made.done(lost, OrderDone(lost.id, []))
    assert not any(keep(ordered(made, 5))), "once"


def test_a_sample_that_comes_twice_in_one_order_is_kept_once() -> None:
    """Else both rows would take room in the cache, and one of them for nothing."""
    made = directory(encoded=9, decoded=9)
    order = ordered(made, 7, 1, 7, 7)
    assert keep(order) == [DECODED, DECODED, 0, 0]
    assert keep(ordered(made, 7)) == [0]
    finish(made, order, only=set())
    assert keep(ordered(made, 7)) == [DECODED], "settled, whatever its other rows say"


def test_the_encoded_form_of_what_is_decoded_by_now_goes() -> None:
    made = directory(encoded=4, decoded=1)
    finish(made, ordered(made, 0, 1, 2))
    made.set_split(budgets(encoded=4, decoded=2))
    reading = ordered(made, 1)
    assert keep(reading) == [DECODED]
    also = ordered(made, 1)
    finish(made, reading)
    assert made.samples == {Form.ENCODED: 2, Form.DECODED: 2, Form.AUGMENTED: 0}, "somebody still reads it"
    made.done(also, OrderDone(also.id, []))
    assert forms(ordered(made, 1)) == [Form.DECODED]


def test_a_cache_that_is_divided_anew_changes_as_others_come() -> None:
    made = directory(decoded=4)
    finish(made, ordered(made, 0, 1, 2, 3))
    made.set_split(budgets(encoded=8, decoded=2))
    for shelf in made._shelves.values():
        shelf.learn([SIZES[shelf.form]])
    assert made.samples[Form.DECODED] == 4, "nothing goes before its room is needed"
    order = ordered(made, 4, 5)
    assert keep(order) == [ENCODED, ENCODED]
    assert made.samples[Form.DECODED] == 3
    finish(made, order)
    finish(made, ordered(made, *range(6, 10)))
    assert made.samples[Form.DECODED] == 2 and made.samples[Form.ENCODED] == 6
    assert made.pool.used <= sum(made.budgets.values())
    back = budgets(decoded=4)
    made.set_split(back)
    finish(made, ordered(made, 4, 5))
    finish(made, ordered(made, *range(4)))
    assert made.samples[Form.DECODED] == 4 and made.samples[Form.ENCODED] == 0


def test_what_is_read_stays() -> None:
    made = directory(decoded=2)
    finish(made, ordered(made, 0, 1))
    reading = ordered(made, 0, 1)
    made.set_split(budgets(encoded=8))
    order = ordered(made, 2)
    assert not any(keep(order)) and made.samples[Form.DECODED] == 2
    made.done(reading, OrderDone(reading.id, []))
    assert keep(ordered(made, 3)) == [ENCODED] and made.samples[Form.DECODED] == 1


def test_blocks_that_were_too_small_are_larger_the_next_time() -> None:
    made = directory(decoded=100)
    order = ordered(made, 1)
    ((_, _, capacity),) = grants(order)
    made.done(order, OrderDone(order.id, [], wanted=(0, 4 * capacity, 0)))
    ((_, _, larger),) = grants(ordered(made, 1))
    assert larger == 8 * capacity, "and the next one may be larger still"


def test_no_more_is_published_than_was_granted() -> None:
    made = directory(decoded=2)
    for sample, (form, more) in enumerate(((Form.DECODED, 1), (Form.ENCODED, 0))):
        order = ordered(made, sample)
        ((_, offset, capacity),) = grants(order)
        published = np.array([(0, int(form), offset, capacity + more)], np.int64).tobytes()
        with pytest.raises(ValueError, match="in a block of"):
            made.done(order, OrderDone(order.id, [], published=published))


@pytest.mark.parametrize("again", [False, True])
def test_samples_entered_again_are_not_counted_again(again: bool) -> None:
    made = directory(decoded=2)
    ordered(made, 1, 2, 2)
    ordered(made, 1, 2, again=again)
    assert made.hits[Form.NONE] == (3 if again else 5)


ORDERS = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=6), min_size=1, max_size=25)
ROOM = st.builds(budgets, st.integers(0, 14), st.integers(0, 14))


@given(ORDERS, ROOM, ROOM, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_accounting_under_any_interleaving(
    orders: list[list[int]], room: dict[Form, int], later: dict[Form, int], random: object
) -> None:
    """Orders overlap and end in any order, with some of what they were to keep published; budgets change."""
    choice, chance = random.choice, random.random  # type: ignore[attr-defined]
    made = Directory(12, room, SPAN)
    waiting, running = list(orders), []
    held: dict[int, tuple[int, int, int]] = {}
    """Blocks that may be written: by offset, the order, the form and the capacity."""
    while waiting or running:
        if chance() < 0.05:
            made.set_split(later)
        if waiting and (not running or chance() < 0.5):
            samples = waiting.pop()
            order = ordered(made, *samples)
            readable = {}
            for row, form in enumerate(order.forms):
                if form:
                    offset = int(np.frombuffer(order.offsets, np.int64)[row])
                    shelf = made._shelves[Form(form)]
                    assert shelf.find([samples[row]])[0][0] == offset
                    readable[offset] = shelf.find([samples[row]])[1][0]
            kept = [(row, bits) for row, bits in enumerate(order.keep) if bits]
            assert len({samples[row] for row, _ in kept}) == len(kept)
            for row, bits in kept:
                assert bits in (ENCODED, DECODED) and bits > (
                    1 << order.forms[row] if order.forms[row] else 0
                )
            for form, offset, capacity in grants(order):
                for there, (_, _, size) in held.items():
                    assert offset + capacity <= there or there + size <= offset, "granted twice"
                held[offset] = (order.id, form, capacity)
            running.append((order, readable))
        else:
            order, readable = choice(running)
            running = [pair for pair in running if pair[0] is not order]
            for offset, nbytes in readable.items():
                for there, (_, _, size) in held.items():
                    assert offset + nbytes <= there or there + size <= offset, "overwritten while it was read"
            held = {offset: block for offset, block in held.items() if block[0] != order.id}
            if chance() < 0.2:
                made.lost(order)
            else:
                rows = {row for row in range(len(order.keep)) if chance() < 0.7}
                finish(made, order, only=rows, size=int(chance() * 60) + 1)
    assert sum(made.hits.values()) <= sum(map(len, orders))
    for form, shelf in made._shelves.items():
        assert not shelf.busy and not shelf.pending.count()
        assert made.samples[form] == shelf.cached.count() == len(shelf)
    assert made.pool.used <= sum(made.budgets.values())


def test_a_directory_learns_what_is_saved_from_what_it_is_told() -> None:
    made = directory(200, decoded=100)
    (shelf,) = made._shelves.values()
    assert made.pool.savings.saves(shelf, Tier.ARENA) == PRIOR[Form.DECODED]
    for start in range(0, 200, 16):
        order = ordered(made, *range(start, start + 16))
        spent = Spent(0.016, 0.16, 0.032, fetched=16, decoded=16, prepared=16)
        made.done(order, OrderDone(order.id, [], spent=spent))
    for _ in range(12):
        order = ordered(made, *range(16))
        made.done(order, OrderDone(order.id, [], spent=Spent(0.016, 0.16, 0.032, 0, 0, 0, 16, 0, -1, 16, 16)))
    assert made.pool.savings.saves(shelf, Tier.ARENA) == pytest.approx(0.011)


def test_what_finds_no_room_in_the_arena_goes_to_the_next_tier() -> None:
    terms = TierTerms(SPAN, budgets(encoded=2, decoded=3))
    made = Directory(12, budgets(decoded=2), SPAN, {Tier.DISK: terms})
    for shelf in made._shelves.values():
        shelf.learn([SIZES[shelf.form]])
    found = finish(made, ordered(made, *range(10)))
    where = {place: unpack(address)[0] for place, address in found.items()}
    decoded = [where.get((sample, Form.DECODED)) for sample in range(10)]
    assert decoded == [Tier.ARENA] * 2 + [Tier.DISK] * 3 + [None] * 5
    encoded = [where.get((sample, Form.ENCODED)) for sample in range(10)]
    assert encoded == [None] * 5 + [Tier.DISK] * 2 + [None] * 3
    again = ordered(made, *range(10))
    assert forms(again) == [Form.DECODED] * 5 + [Form.ENCODED] * 2 + [Form.NONE] * 3
    assert np.frombuffer(again.offsets, np.int64).tolist()[:5] == [found[at, Form.DECODED] for at in range(5)]
    made.lost(again)
    made.set_split(budgets(decoded=1), Tier.DISK)
    made.pool.fit()
    assert (
        made.pool.rooms[Tier.DISK].used <= 4 * PAGE
        and made.samples[Form.DECODED] + made.samples[Form.ENCODED] < 7
    )
