"""Who may write where in the memory of a device that jobs share."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.coordinate.device_pools import LEAST_CHUNK, MOST_CHUNK, DevicePool, chunk_bytes
from headrace.core.errors import ProtocolError


@given(st.integers(0, 1 << 40), st.sampled_from([4096, 2 << 20]))
def test_chunks_are_of_a_size_that_there_is_room_for(budget: int, granularity: int) -> None:
    size = chunk_bytes(budget, granularity)
    assert size <= min(budget, MOST_CHUNK) and size % granularity == 0
    assert size or budget < granularity
    assert size >= min(LEAST_CHUNK, budget) - granularity


class Jobs(RuleBasedStateMachine):
    """Jobs that come and go, and write while they live, whatever the pool thinks of them."""

    def __init__(self) -> None:
        super().__init__()
        numbers = itertools.count(1)
        self.pool = DevicePool(10, lambda: next(numbers))
        self.members = itertools.count(1)
        self.here: dict[int, int] = {}
        """Budgets of those who are connected."""
        self.writes: dict[int, int] = {}
        """Where each of those who live writes."""
        self.making: dict[int, int] = {}
        self.gone: set[int] = set()
        """Those who live, and are not connected."""
        self.numbers: set[int] = set()
        self.largest = 0

    @rule(budget=st.integers(0, 60))
    def come(self, budget: int) -> None:
        member = next(self.members)
        self.pool.attach(member, budget)
        self.here[member] = budget

    @rule(data=st.data())
    def want(self, data: st.DataObject) -> None:
        if not self.here:
            return
        member = data.draw(st.sampled_from(sorted(self.here)))
        before = max(self.here.values())
        found = self.pool.want(member)
        self.writes.pop(member, None)
        if found is None:
            return
        number, there = found
        if there:
            assert number in self.numbers and number not in self.writes.values()
            self.writes[member] = number
        else:
            assert number not in self.numbers
            self.numbers.add(number)
            self.making[member] = number
            assert (len(self.pool.chunks) + len(self.making)) * 10 <= before

    @rule(data=st.data(), good=st.booleans())
    def make(self, data: st.DataObject, good: bool) -> None:
        if not self.making:
            return
        member = data.draw(st.sampled_from(sorted(self.making)))
        number = self.making.pop(member)
        if not good:
            self.pool.failed(member)
            self.numbers.discard(number)
            return
        assert not self.pool.made(member + 1, number) and self.pool.made(member, number)
        self.writes[member] = number

    @rule(data=st.data(), politely=st.booleans())
    def leave(self, data: st.DataObject, politely: bool) -> None:
        if not self.here:
            return
        member = data.draw(st.sampled_from(sorted(self.here)))
        del self.here[member]
        self.making.pop(member, None)
        if politely:
            self.writes.pop(member, None)
            self.pool.done(member)
        may_write = self.pool.leave(member)
        assert may_write == (member in self.writes)
        if may_write:
            self.gone.add(member)

    @rule(data=st.data(), returns=st.booleans())
    def end(self, data: st.DataObject, returns: bool) -> None:
        """Somebody who has lost its connection ends, or comes back."""
        if not self.gone:
            return
        member = data.draw(st.sampled_from(sorted(self.gone)))
        self.gone.discard(member)
        number = self.writes.pop(member)
        if not returns:
            self.pool.done(member)
            return
        again = next(self.members)
        self.pool.attach(again, 20)
        self.here[again] = 20
        self.pool.come_back(member, again)
        assert not self.pool.offer(again, number, writing=True)
        self.writes[again] = number

    @rule()
    def hope(self) -> None:
        hopeful = self.pool.take_hopeful()
        assert hopeful <= set(self.here)

    @invariant()
    def one_writer(self) -> None:
        assert len(set(self.writes.values())) == len(self.writes)
        for member, number in self.writes.items():
            assert self.pool.chunks[number] == member


TestJobs = Jobs.TestCase
TestJobs.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_what_comes_from_a_host_before() -> None:
    pool = DevicePool(10, itertools.count(7).__next__)
    pool.attach(1, 100)
    assert pool.offer(1, 3, writing=True) and pool.offer(1, 4, writing=False)
    assert pool.want(1) == (7, False), "whose writer is not known is nobody's"
    pool.attach(2, 100)
    with pytest.raises(ProtocolError, match="has a writer"):
        pool.offer(2, 3, writing=True)
    assert not pool.offer(2, 4, writing=True) and pool.chunks[4] == 2
    pool.leave(2)
    pool.done(2)
    pool.failed(1)
    assert pool.want(1) == (4, True)
