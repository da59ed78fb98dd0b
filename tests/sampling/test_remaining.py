"""The books on what each job still needs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.core.bits import Bits
from headrace.sampling import Remaining

IDS = st.lists(st.integers(0, 149), max_size=30)


class Books(RuleBasedStateMachine):
    """Any sequence of calls, against a dictionary of Python's sets."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 40
        self.remaining = Remaining(self.size)
        self.model: dict[int, set[int]] = {}

    def below(self, ids: list[int]) -> list[int]:
        return [one % self.size for one in ids]

    @rule(more=st.integers(0, 100))
    def grow(self, more: int) -> None:
        self.size = min(self.size + more, 150)
        self.remaining.grow(self.size)

    @rule(job=st.integers(0, 4), ids=IDS, short=st.integers(0, 30))
    def join(self, job: int, ids: list[int], short: int) -> None:
        size = self.size - short
        bits = Bits.of(size, [one % size for one in ids])
        if job in self.model:
            with pytest.raises(ValueError, match="joined already"):
                self.remaining.join(job, bits)
            self.remaining.begin(job, bits)
        else:
            self.remaining.join(job, bits)
        self.model[job] = set(bits.ids().tolist())
        bits.add([0])  # the set was copied

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.model)))
        self.remaining.leave(job)
        del self.model[job]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), ids=IDS, back=st.booleans())
    def move(self, data: st.DataObject, ids: list[int], back: bool) -> None:
        job = data.draw(st.sampled_from(sorted(self.model)))
        moved = np.array(self.below(ids), np.int64)
        if back:
            self.remaining.put_back(job, moved)
            self.model[job] |= set(moved.tolist())
        else:
            self.remaining.take(job, moved)
            self.model[job] -= set(moved.tolist())

    @invariant()
    def agrees(self) -> None:
        assert set(self.remaining.jobs) == set(self.model)
        for job, needed in self.model.items():
            assert self.remaining.left(job) == len(needed)
            assert self.remaining.bits(job) == Bits.of(self.size, sorted(needed))
        everything = np.arange(self.size)
        counts = self.remaining.needs(everything, self.model)
        assert counts.tolist() == [
            sum(one in needed for needed in self.model.values()) for one in range(self.size)
        ]
        assert self.remaining.nbytes == len(self.model) * 8 * -(-self.size // 64)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_what_cannot_be_is_refused() -> None:
    remaining = Remaining(10)
    with pytest.raises(ValueError, match="universe"):
        remaining.join(0, Bits.full(11))
    with pytest.raises(KeyError):
        remaining.begin(0, Bits.full(10))
    assert remaining.jobs == ()
    remaining.join(0, Bits.full(10))
    with pytest.raises(IndexError):
        remaining.take(0, np.array([10]))
    assert remaining.left(0) == 10
