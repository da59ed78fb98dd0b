"""The directory: each sample enters at its most prepared form, is cached once, and is counted once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinate.directory import Directory
from headrace.core.forms import CACHEABLE, Form

ENCODED, DECODED = 1 << Form.ENCODED, 1 << Form.DECODED
BOTH = {Form.ENCODED: 100, Form.DECODED: 100}


def ids(*samples: int) -> np.ndarray:
    return np.array(samples, np.int64)


def published(*rows: tuple[int, int, int, int]) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, 4)


def test_nothing_is_cached_without_a_budget() -> None:
    assert not Directory(10, {}).caches
    assert not Directory(10, dict.fromkeys(CACHEABLE, 0)).caches
    forms, offsets, _, keep = Directory(10, {}).enter(ids(1, 2))
    assert not forms.any()
    assert not keep.any()
    assert offsets.tolist() == [-1, -1]


def test_the_most_prepared_form_wins() -> None:
    directory = Directory(10, BOTH)
    directory.publish(ids(3, 4), published((0, Form.ENCODED, 64, 10), (0, Form.DECODED, 640, 30)))
    directory.publish(ids(4), published((0, Form.ENCODED, 128, 11)))
    forms, offsets, lengths, keep = directory.enter(ids(4, 3, 5))
    assert forms.tolist() == [Form.ENCODED, Form.DECODED, Form.NONE]
    assert offsets.tolist() == [128, 640, -1]
    assert lengths.tolist() == [11, 30, 0]
    assert keep.tolist() == [DECODED, 0, ENCODED | DECODED]


def test_a_pending_sample_is_asked_for_once_and_again_after_it_failed() -> None:
    directory = Directory(10, BOTH)
    first = directory.enter(ids(1, 2))[3]
    assert first.tolist() == [ENCODED | DECODED] * 2
    assert directory.enter(ids(2, 3))[3].tolist() == [0, ENCODED | DECODED]
    directory.publish(ids(1, 2), published((0, Form.DECODED, 0, 5)))
    directory.settle(ids(1, 2), first)
    assert directory.enter(ids(1, 2))[3].tolist() == [0, ENCODED | DECODED]


def test_a_sample_that_comes_twice_in_one_order_is_kept_once() -> None:
    """Else both rows would take room in the cache, and one of them for nothing."""
    directory = Directory(10, BOTH)
    keep = directory.enter(ids(7, 1, 7, 7))[3]
    assert keep.tolist() == [ENCODED | DECODED, ENCODED | DECODED, 0, 0]
    assert not directory.enter(ids(7))[3].any()
    directory.settle(ids(7, 1, 7, 7), keep)
    assert directory.enter(ids(7))[3].tolist() == [ENCODED | DECODED], "settled, whatever its other rows say"


def test_a_full_form_is_no_longer_asked_for() -> None:
    directory = Directory(10, BOTH)
    directory.full(Form.DECODED)
    assert directory.enter(ids(1))[3].tolist() == [ENCODED]
    directory.full(Form.ENCODED)
    assert directory.enter(ids(2))[3].tolist() == [0]


def test_what_is_published_twice_counts_once() -> None:
    directory = Directory(10, BOTH)
    directory.publish(ids(1), published((0, Form.DECODED, 64, 5)))
    directory.publish(ids(1), published((0, Form.DECODED, 128, 9)))
    assert directory.bytes[Form.DECODED] == 5
    assert directory.samples[Form.DECODED] == 1
    assert directory.enter(ids(1))[1].tolist() == [64]


def test_extents_beyond_four_gigabytes() -> None:
    directory = Directory(4, {Form.DECODED: 2**40})
    directory.publish(ids(2), published((0, Form.DECODED, 2**35, 5 * 2**30)))
    _, offsets, lengths, _ = directory.enter(ids(2))
    assert (offsets[0], lengths[0]) == (2**35, 5 * 2**30)


@pytest.mark.parametrize("again", [False, True])
def test_samples_entered_again_are_not_counted_again(again: bool) -> None:
    directory = Directory(10, BOTH)
    directory.enter(ids(1, 2, 2))
    directory.enter(ids(1, 2), again=again)
    assert directory.hits[Form.NONE] == (3 if again else 5)


ORDERS = st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=6), min_size=1, max_size=25)


@given(ORDERS, st.randoms(use_true_random=False), st.booleans(), st.booleans())
@settings(deadline=None)
def test_accounting_under_any_interleaving(
    orders: list[list[int]], random: object, encoded: bool, decoded: bool
) -> None:
    """Orders overlap and end in any order, with some of what they were to keep published."""
    choice, chance = random.choice, random.random  # type: ignore[attr-defined]
    directory = Directory(12, {Form.ENCODED: 99 * encoded, Form.DECODED: 99 * decoded})
    waiting, running = list(orders), []
    where: dict[tuple[int, int], tuple[int, int]] = {}
    asked: Counter[tuple[int, int]] = Counter()
    next_offset, drawn = 0, 0
    while waiting or running:
        if waiting and (not running or chance() < 0.5):
            indices = ids(*waiting.pop())
            drawn += len(indices)
            forms, offsets, lengths, keep = directory.enter(indices)
            for row, sample in enumerate(indices.tolist()):
                best = max((form for form in CACHEABLE if (sample, form) in where), default=Form.NONE)
                assert forms[row] == best
                assert (offsets[row], lengths[row]) == where.get((sample, best), (-1, 0))
                for form in CACHEABLE:
                    if keep[row] & (1 << form):
                        assert form > best
                        asked[sample, form] += 1
                        assert asked[sample, form] == 1, "two rows at once keep the same sample"
            running.append((indices, keep))
        else:
            indices, keep = choice(running)
            running = [order for order in running if order[0] is not indices]
            rows = []
            for row, sample in enumerate(indices.tolist()):
                for form in CACHEABLE:
                    if keep[row] & (1 << form):
                        asked[sample, form] -= 1
                        if chance() < 0.6:
                            size = int(chance() * 50) + 1
                            rows.append((row, int(form), next_offset, size))
                            assert (sample, form) not in where
                            where[sample, form] = (next_offset, size)
                            next_offset += 64
            directory.publish(indices, published(*rows))
            directory.settle(indices, keep)
    assert sum(directory.hits.values()) == drawn
    for form in CACHEABLE:
        sizes = [size for (_, kind), (_, size) in where.items() if kind == form]
        assert (directory.samples[form], directory.bytes[form]) == (len(sizes), sum(sizes))
    missing = directory.enter(np.arange(12))[3]
    for sample in range(12):
        best = max((form for form in CACHEABLE if (sample, form) in where), default=Form.NONE)
        wanted = (ENCODED * encoded if best < Form.ENCODED else 0) | (
            DECODED * decoded if best < Form.DECODED else 0
        )
        assert missing[sample] == wanted, "something stayed pending though no order is at it"
