"""The table of permits in C and in Python: the same rules, word for word."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.permit_table import GIVEN, HOLDER, STATE, TOKEN, WAITS, in_c, in_python
from headrace.engine.roster import CELL_WIDTH, LIMIT, MOST, WAIT_WIDTH, WAITING

CELLS, PLACES = 6, 5
TABLES = [pytest.param(in_python, id="python")] + ([] if in_c is None else [pytest.param(in_c, id="c")])


class Words:
    """A small table."""

    def __init__(self, limit: int) -> None:
        self.header = np.zeros(16, np.int64)
        self.cells = np.zeros((CELLS, CELL_WIDTH), np.int64)
        self.waits = np.zeros((PLACES, WAIT_WIDTH), np.int64)
        self.header[LIMIT] = limit

    @property
    def all(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.header, self.cells, self.waits

    def same(self, other: Words) -> bool:
        return all(np.array_equal(mine, its) for mine, its in zip(self.all, other.all, strict=True))


ops = st.lists(
    st.tuples(
        st.sampled_from(["take", "renew", "give", "collect", "limit"]),
        st.integers(1, 4),  # a process
        st.integers(0, 50),  # a deadline
        st.integers(0, 20),  # by how much later it counts
        st.integers(0, 30),  # which of those that are held
    ),
    max_size=60,
)


@pytest.mark.skipif(in_c is None, reason="what is in C is not built")
@given(st.integers(0, CELLS + 1), ops)
def test_both_do_the_same(limit, steps):
    one, two = Words(limit), Words(limit)
    held: list[tuple[int, int]] = []
    for number, (what, pid, deadline, later, which) in enumerate(steps):
        token = 1000 + number
        if what == "take":
            found = [
                table.take(*words.all, deadline, later, pid, 7, token, number)
                for table, words in ((in_python, one), (in_c, two))
            ]
            assert found[0] == found[1]
            if found[0] >= 0:
                held.append((found[0], token))
        elif what == "limit":
            one.header[LIMIT] = two.header[LIMIT] = which % (CELLS + 2)
        elif what == "collect":
            for place in np.flatnonzero(one.waits[:, STATE] >= GIVEN).tolist():
                cell = int(one.waits[place, STATE]) - GIVEN
                held.append((cell, int(one.cells[cell, TOKEN])))
                one.waits[place, STATE] = two.waits[place, STATE] = 0
        elif held:
            permit = held[which % len(held)]
            if what == "renew":
                kept = [
                    table.renew(*words.all, *permit, deadline, later, number)
                    for table, words in ((in_python, one), (in_c, two))
                ]
                assert kept[0] == kept[1]
            else:
                held.remove(permit)
                in_python.give(*one.all, *permit, number)
                in_c.give(*two.all, *permit, number)
        assert one.same(two), what
        assert np.count_nonzero(one.cells[:, HOLDER]) <= max(1, CELLS)
        assert int(one.header[WAITING]) == np.count_nonzero(one.waits[:, STATE] == WAITS)


@pytest.mark.parametrize("table", TABLES)
def test_never_more_than_the_limit(table):
    words = Words(2)
    found = [table.take(*words.all, 10, 0, pid, 0, pid, 0) for pid in (1, 2, 3, 4)]
    assert found == [0, 1, -2, -3] and words.header[MOST] == 2
    table.give(*words.all, 0, 1, 1)
    assert words.waits[0, STATE] == GIVEN and words.header[WAITING] == 1 and words.header[MOST] == 2


@pytest.mark.parametrize("table", TABLES)
def test_of_equal_deadlines_a_process_without_a_permit_comes_first(table):
    """Threads of one process hold each other up, as only one of them can hold the interpreter lock."""
    words = Words(2)
    table.take(*words.all, 10, 5, 1, 0, 100, 0)
    table.take(*words.all, 10, 5, 2, 0, 101, 0)
    assert table.take(*words.all, 10, 5, 1, 0, 102, 0) == -2
    assert table.take(*words.all, 12, 5, 3, 0, 103, 0) == -3
    table.give(*words.all, 1, 101, 1)
    assert words.waits[1, STATE] == GIVEN + 1, "it has none yet"
    assert table.take(*words.all, 30, 5, 4, 0, 104, 0) == -4
    table.give(*words.all, 1, 103, 1)
    assert words.waits[0, STATE] == GIVEN + 1, "it is needed much sooner than the other"


@pytest.mark.parametrize("table", TABLES)
def test_a_permit_is_kept_unless_somebody_needs_it_sooner(table):
    words = Words(1)
    cell = table.take(*words.all, 10, 0, 1, 0, 100, 0)
    assert table.take(*words.all, 20, 0, 2, 0, 101, 0) == -2
    assert table.renew(*words.all, cell, 100, 15, 0, 1)
    assert not table.renew(*words.all, cell, 100, 25, 0, 1)
    assert not table.renew(*words.all, cell, 99, 0, 0, 1), "it is another's"


@pytest.mark.skipif(in_c is None, reason="what is in C is not built")
def test_what_is_no_table_is_refused():
    words = Words(1)
    with pytest.raises(ValueError, match="no table"):
        in_c.take(words.header[:2], words.cells, words.waits, 1, 0, 1, 0, 1, 0)
    with pytest.raises(ValueError, match="no table"):
        in_c.give(words.header, words.cells[:0], words.waits, 0, 0, 0)
