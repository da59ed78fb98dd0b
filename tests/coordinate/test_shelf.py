"""The table of a shelf against a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinate.shelf import Shelf
from headrace.core.forms import Form

OPS = st.lists(
    st.tuples(
        st.sampled_from(("put", "put", "put", "remove", "use", "read", "release", "down")),
        st.integers(0, 15),
        st.integers(1, 99),
    ),
    max_size=60,
)


@given(OPS)
def test_shelf_against_a_dictionary(ops: list[tuple[str, int, int]]) -> None:
    shelf = Shelf(Form.DECODED, "d", 16)
    model: dict[int, list[int]] = {}
    readers: dict[int, int] = {}
    for now, (op, sample, number) in enumerate(ops):
        if op == "put" and sample not in model:
            shelf.put([sample], [64 * now], [number], now, [number % 3])
            model[sample] = [64 * now, number, 0, now, now, number % 3]
        elif sample not in model:
            continue
        elif op == "remove" and sample not in readers:
            assert shelf.remove([sample]) == [model.pop(sample)[0]]
        elif op == "use":
            shelf.use([sample], now)
            model[sample][2] += 1
            model[sample][4] = now
        elif op == "read":
            shelf.read([sample])
            readers[sample] = readers.get(sample, 0) + 1
        elif op == "release" and sample in readers:
            shelf.release([sample])
            readers[sample] -= 1
            if not readers[sample]:
                del readers[sample]
        elif op == "down":
            shelf.count_down([sample])
            model[sample][5] -= 1
        assert dict(shelf.busy) == readers and shelf.cached.ids().tolist() == sorted(model)
        assert len(shelf) == len(model) and all(one in shelf for one in model)
        assert shelf.bytes == sum(entry[1] for entry in model.values())
    everybody = sorted(model)
    offsets, lengths = shelf.find(everybody)
    assert offsets.tolist() == [model[one][0] for one in everybody]
    assert lengths.tolist() == [model[one][1] for one in everybody]
    idle = sorted([one, *model[one]] for one in everybody if one not in readers)
    assert sorted(shelf.entries().tolist()) == idle
    over = [one for one in everybody if one not in readers and model[one][5] <= 0]
    assert shelf.used_up(list(range(16))) == over


def test_the_table_grows() -> None:
    shelf = Shelf(Form.DECODED, "d", 2000)
    for sample in range(0, 1000, 10):
        some = list(range(sample, sample + 10))
        shelf.put(some, some, [1] * 10, sample)
    gone = list(range(0, 1000, 2))
    assert shelf.remove(gone) == gone and shelf.remove([]) == []
    more = list(range(1000, 1700))
    shelf.put(more, more, [1] * 700, 0)
    shelf.put([], [], [], 0)
    assert shelf.find([1, 999, 1000, 1699])[0].tolist() == [1, 999, 1000, 1699]
    assert len(shelf) == len(shelf.entries()) == shelf.cached.count() == 1200


def test_sizes_are_guessed_until_they_are_known() -> None:
    shelf = Shelf(Form.DECODED, "d", 10)
    assert shelf.expected == 1 << 20 and shelf.capacity == 1 << 24 and not shelf.unsure
    shelf.owner[3] = 1
    assert shelf.unsure
    shelf.learn([500])
    shelf.learn([400])
    assert (shelf.expected, shelf.capacity) == (450, 500) and not shelf.unsure
    fixed = Shelf(Form.AUGMENTED, "a", 10, body=77)
    fixed.owner[3] = 1
    assert fixed.expected == fixed.capacity == 77 and not fixed.unsure


def test_a_single_giant_does_not_set_the_measure() -> None:
    shelf = Shelf(Form.DECODED, "d", 1000)
    for _ in range(99):
        shelf.learn([1000])
    shelf.too_small(1 << 40)
    assert shelf.expected == 1000 and shelf.capacity == 8192
    shelf.learn([1001])
    assert shelf.capacity == 8192, "the mean moves, blocks stay alike"


def test_blocks_of_samples_of_similar_size_have_no_gaps() -> None:
    shelf = Shelf(Form.DECODED, "d", 1000)
    shelf.learn([500_000, 560_000, 560_000])
    assert shelf.capacity == 1_120_000, "few are known, and the next one may well be the largest"
    shelf.learn([500_000, 560_000] * 100)
    assert shelf.capacity == 560_000, "what is larger finds no room once"
    shelf.too_small(600_000)
    assert shelf.capacity == 600_000
    shelf.learn([800_000])
    assert shelf.capacity == 1_600_000, "they differ much, and the next one may be larger still"


def test_a_first_extent_that_found_no_room_says_how_large_they_are() -> None:
    shelf = Shelf(Form.DECODED, "d", 10)
    shelf.too_small(1 << 25)
    assert shelf.known and shelf.expected == shelf.capacity == 1 << 25


def test_more_jobs_want_what_lies_there() -> None:
    shelf = Shelf(Form.AUGMENTED, "a", 10, body=64)
    for sample in range(4):
        shelf.put([sample], [64 * sample], [64], 0, left=1)
    shelf.change_left(np.array([1, 0, -1, -2]), np.arange(4))
    assert shelf.used_up([0, 1, 2, 3, 9]) == [2, 3]
