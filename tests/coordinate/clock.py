"""Jobs in virtual time: processors that take turns, rows that take as long as their forms say."""

from __future__ import annotations

import heapq
import random

from headrace.coordinate.events import Ticked
from headrace.core.forms import Form
from tests.coordinate.jobs import Work, World, prepared

COST = {Form.NONE: 10.0, Form.ENCODED: 9.5, Form.DECODED: 1.2, Form.AUGMENTED: 0.4}


def run(world: World, epochs: int, *, ahead: int = 3, workers: int = 2, seed: int = 0) -> None:
    """All members through so many epochs, in virtual time: ``workers`` processors take turns over the jobs."""
    rng = random.Random(seed)
    queue: dict[int, list[tuple[Work, int, int]]] = {member.member: [] for member in world.members}
    known: dict[int, int] = {}
    events: list[tuple[float, int, Work, int, int]] = []
    ticks = serial = turn = 0
    busy = 0
    members = world.members
    for member in members:
        member.begin()
    while True:
        for member in members:
            while not member.over and member.waiting_asks + len(member.work) < ahead:
                member.ask()
            if member.over and not member.work and member.epoch + 1 < epochs:
                member.check_epoch()
                member.begin()
                continue
            for work in list(member.work.values()):
                before = known.get(work.ticket, 0)
                stop = len(work.forms) if work.updated else work.waits
                for start in range(before, stop, 16):
                    queue[member.member].append((work, start, min(16, stop - start)))
                known[work.ticket] = stop
        while busy < workers:
            order = members[turn % len(members) :] + members[: turn % len(members)]
            chosen = next((member for member in order if queue[member.member]), None)
            if chosen is None:
                break
            turn = members.index(chosen) + 1
            work, start, count = queue[chosen.member].pop(0)
            cost = sum(COST[Form(form)] for form in work.forms[start : start + count])
            serial, busy = serial + 1, busy + 1
            end = world.now + 1e-3 * cost * rng.uniform(0.8, 1.2)
            heapq.heappush(events, (end, serial, work, start, count))
        if events:
            world.now, _, work, start, count = heapq.heappop(events)
            busy -= 1
            work.member.finish(work, start, count, prepared)
        elif all(member.over and not member.work and member.epoch + 1 >= epochs for member in members):
            break
        elif not any(queue.values()):
            if all(member.waiting_asks == 0 for member in members if not member.over) and not any(
                member.work for member in members
            ):
                continue
            ticks += 1
            assert ticks < 10_000, "nothing moves"
            world.now += 0.5
            world.tell(Ticked(1))
            world.deliver()
    for member in members:
        member.check_epoch()
