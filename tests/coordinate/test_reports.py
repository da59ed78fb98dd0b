"""What jobs report is not believed before it is checked."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.coordinate.events import Asked, Began, Done
from headrace.coordinate.members import write_progress
from headrace.coordinate.protocol import Begin, Finished
from headrace.core.addresses import NOWHERE, Tier, pack
from headrace.core.bits import Bits
from headrace.core.errors import ProtocolError
from headrace.planning import Spent
from tests.coordinate.jobs import Member, World, pair, prepared


def state(world: World) -> object:
    """All that an event could change."""
    state = world.state
    shelves = [
        (
            key,
            shelf.entries().tolist(),
            shelf.cached.tobytes(),
            shelf.pending.tobytes(),
            dict(shelf.owner),
            dict(shelf.busy),
            shelf.bytes,
            shelf.expected,
            shelf.capacity,
        )
        for key, shelf in state.pool.shelves.items()
    ]
    tickets = [
        (
            ticket.id,
            dict(ticket.blocks),
            ticket.reads.tolist(),
            ticket.open.tolist(),
            ticket.left,
            ticket.waits,
        )
        for ticket in state.tickets.values()
    ]
    left = [state.remaining.words(job).tolist() for job in state.jobs]
    return shelves, tickets, left, state.pool.used, state.decodes, state.fetches, len(state.out)


def malformed(rows: int, grants: list[tuple[int, int, int, int]]) -> list[tuple[str, Finished]]:
    """Reports about ticket 0 that nobody should believe."""
    row, form, offset, capacity = grants[-1]
    good = grants[0][0], grants[0][1], grants[0][2], 10

    def report(*published: tuple[int, int, int, int], first: int = 0, count: int = rows) -> Finished:
        packed = np.array([good, *published], np.int64).tobytes()
        return Finished(
            0, first, count, packed, wanted=(7, 1 << 24, 1 << 24), spent=Spent(decoded=3, fetched=4)
        )

    return [
        ("rows beyond", Finished(0, 0, rows + 1, wanted=(9, 1 << 24, 9), spent=Spent(decoded=1))),
        ("rows far beyond", Finished(0, 1 << 40, 1)),
        ("cut off", Finished(0, 0, rows, np.array([*good, row], np.int64).tobytes(), spent=Spent(decoded=1))),
        ("a row beyond", report((rows, form, offset, 1))),
        ("a negative row", report((-1, form, offset, 1))),
        ("not granted", report((row, form, offset + 64, 1))),
        ("another tier", report((row, form, pack(Tier.DISK, offset), 1))),
        ("no tier", report((row, form, offset | 77 << 56, 1))),
        ("nowhere", report((row, form, NOWHERE, 1))),
        ("another form", report((row, 4 - form if form != 2 else 3, offset, 1))),
        ("no form", report((row, 0, offset, 1))),
        ("a huge form", report((row, 1 << 40, offset, 1))),
        ("too long", report((row, form, offset, capacity + 1))),
        ("empty", report((row, form, offset, 0))),
        ("negative", report((row, form, offset, -1))),
        ("the same block twice", report(good)),
        ("the same row twice", report((good[0], good[1], offset, 1))),
        ("rows of another part", report((row, form, offset, 1), count=rows - 1)),
    ]


CASES = [name for name, _ in malformed(8, [(0, 3, 0, 64), (7, 3, 64, 64)])]


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_report_is_an_error_and_changes_nothing(name: str) -> None:
    world = World()
    first, second = pair(world, keys=("", "", "a"))
    second.ask()
    (work,) = first.work.values()
    report = dict(malformed(8, work.grants))[name]
    report.ticket = work.ticket
    before = state(world)
    with pytest.raises(ProtocolError):
        world.tell(Done(first.member, report))
    assert state(world) == before
    world.settle()
    world.check_quiet()


def test_a_row_that_is_done_with_cannot_be_published() -> None:
    world = World()
    first, _ = pair(world, keys=("", "", "a"))
    (work,) = first.work.values()
    taken = work.grants[-1]
    first.finish(work, 0, 4, prepared)
    before = state(world)
    late = np.array([(0, taken[1], taken[2], 10)], np.int64).tobytes()
    with pytest.raises(ProtocolError):
        world.tell(Done(first.member, Finished(work.ticket, 0, 8, late)))
    assert state(world) == before


def test_reports_about_others_draws_and_draws_that_are_over_are_passed_over() -> None:
    world = World()
    first, second = pair(world, keys=("", "", "a"))
    (work,) = first.work.values()
    before = state(world)
    world.tell(Done(second.member, Finished(work.ticket, 0, 8)))
    world.tell(Done(first.member, Finished(work.ticket + 99, 0, 8)))
    assert state(world) == before
    first.finish(work, 0, 8, prepared)
    before = state(world)
    world.tell(Done(first.member, Finished(work.ticket, 0, 8)))
    assert state(world) == before


@pytest.mark.parametrize("indices", [b"1234567", np.array([8]).tobytes(), np.array([-1]).tobytes()])
def test_indices_that_do_not_exist_are_an_error(indices: bytes) -> None:
    world = World()
    member = Member(world, np.arange(8), sampling="uniform")
    with pytest.raises(ProtocolError):
        world.tell(Asked(member.member, indices))  # before an epoch began
    member.begin()
    with pytest.raises(ProtocolError):
        world.tell(Asked(member.member, indices))
    assert not world.state.tickets


def test_progress_with_samples_that_do_not_exist_changes_nothing() -> None:
    world = World()
    member = Member(world, np.arange(10))
    member.begin()
    member.ask()
    world.settle()
    before = state(world)
    for broken in (write_progress(Bits.empty(10), {0: np.array([11])}), b"1234567"):
        with pytest.raises(ProtocolError):
            world.tell(Began(member.member, Begin(0, step=1), broken))
    assert state(world) == before
    world.drain()
    member.check_epoch()
