"""Several batches at once: only of what is cached, only as fast as a rank takes them, and whole whatever happens."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.coordinate.coordinator import Coordinator, Slot
from headrace.coordinate.draw_client import DrawClient
from headrace.coordinate.events import Asked, Done
from headrace.coordinate.messages import OrderDone
from headrace.coordinate.protocol import Ask, Drawn, Finished, Request
from headrace.coordinate.shared_directory import SharedDirectory
from headrace.coordinate.shared_draws import SharedDraws
from headrace.core.errors import ProtocolError
from headrace.core.forms import CACHEABLE, Form
from headrace.planning import Spent
from headrace.sampling import Draw, Geometry, UniformDraws, UniformEpoch
from tests.coordinate.jobs import Member, Work, World, prepared
from tests.coordinate.test_draw_client import Host, Rank, samples_of

DECODED = ("", "d", "")


def cached(
    samples: int = 100, jobs: int = 1, *, keys: tuple[str, str, str] = DECODED, **terms: object
) -> list[Member]:
    """Jobs that have been through an epoch, with room for everything."""
    world = World()
    members = [
        Member(world, np.arange(samples), keys=keys, budget=1 << 27, together=16, **terms)  # type: ignore[arg-type]
        for _ in range(jobs)
    ]
    for member in members:
        member.begin()
    world.drain()
    for member in members:
        member.check_epoch()
        member.begin()
    return members


def finish(member: Member) -> None:
    """All that it was given is done, in no time."""
    for work in list(member.work.values()):
        member.finish(work, 0, len(work.forms), prepared)


def until_stretch(member: Member) -> Work:
    """Ask until several batches come at once."""
    for _ in range(4):
        member.go_on()
        (work,) = member.work.values()
        if work.stretch:
            return work
        finish(member)
    raise AssertionError("there is none")


def sizes(member: Member, seconds: float = 0.0) -> list[int]:
    """Batches that each ask of an epoch is answered with."""
    found = []
    while not member.over:
        before = len(member.got)
        member.go_on()
        found.append(len(member.got) - before)
        finish(member)
        member.world.now += seconds
    return found


@pytest.mark.parametrize("sampling", ["auto", "opportunistic", "dependent"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_cached_is_given_more_and_more_at_once(sampling: str, jobs: int) -> None:
    member, *_ = cached(jobs=jobs, sampling=sampling)
    assert sizes(member) == [1, 2, 4, 6, 0]
    member.check_epoch()
    member.tell_ends()
    member.world.check_quiet()


def test_a_rank_that_takes_its_time_is_given_one_at_a_time() -> None:
    (member,) = cached()
    assert sizes(member, seconds=0.5) == [1] * 13 + [0]


def test_as_many_as_it_takes_in_a_moment() -> None:
    (member,) = cached(samples=400)
    assert sizes(member, seconds=0.005)[:6] == [
        1,
        2,
        4,
        8,
        16,
        16,
    ]  # (each takes longer: fewer would be next)


def test_what_has_to_be_prepared_is_given_one_at_a_time() -> None:
    world = World()
    members = [
        Member(world, np.arange(100), keys=("", "d", "a"), together=16, budget=1 << 27) for _ in range(2)
    ]
    for member in members:
        member.begin()
    for _ in range(6):
        for member in members:
            before = len(member.got)
            member.go_on()
            assert len(member.got) == before + 1
            assert all(work.forms.all() for work in member.work.values() if work.stretch)
            finish(member)


def test_augmented_samples_that_others_made_are_given_at_once() -> None:
    maker, taker = cached(jobs=2, keys=("", "d", "a"), samples=96)
    while not maker.over:
        maker.go_on()
        finish(maker)
    assert sizes(taker) == [1, 2, 4, 5, 0]
    assert taker.world.hits[Form.AUGMENTED] >= 90


def test_ranks_of_one_job_get_one_at_a_time_and_say_themselves_when_it_is_over() -> None:
    world = World()
    ranks = [
        Member(
            world,
            np.arange(64),
            keys=DECODED,
            group="g",
            rank=rank,
            world_size=2,
            together=16,
            budget=1 << 27,
        )
        for rank in range(2)
    ]
    for _ in range(2):
        for member in ranks:
            member.begin()
        while not all(member.over for member in ranks):
            for member in ranks:
                before = len(member.got)
                member.go_on()
                assert len(member.got) - before <= 1
                finish(member)
        assert sorted(np.concatenate([*ranks[0].got, *ranks[1].got]).tolist()) == list(range(64))
    assert world.stretches >= 6
    world.settle()
    world.check_quiet()


def test_who_reads_a_job_that_is_cached_whole_takes_nothing_from_others() -> None:
    """So it may have more batches ahead than one in company should."""
    member, other = cached(jobs=2)
    until_stretch(member)
    assert member.company == 0
    member.world.state.pool.evict(member.world.state.pool.shelves[Form.DECODED, "d"], [99])
    other.go_on()
    assert other.company == 1


def test_what_a_stretch_reads_stays_until_it_is_over() -> None:
    (member,) = cached(samples=64)
    world = member.world
    work = until_stretch(member)
    shelf = world.state.pool.shelves[Form.DECODED, "d"]
    assert sorted(shelf.busy) == sorted(work.indices.tolist())
    world.state.pool.set_budget(0, None)
    assert len(shelf) == len(work.indices)
    member.finish(work, 0, len(work.forms), prepared)
    assert len(shelf) == len(work.indices), "it has not been told yet"
    member.go_on()
    assert not set(shelf.busy) & set(work.indices.tolist())


def test_only_stretches_of_its_own_can_be_said_to_be_over() -> None:
    first, second = cached(jobs=2)
    world = first.world
    first.go_on()
    (work,) = first.work.values()
    told = np.array([work.ticket], np.int64).tobytes()
    with pytest.raises(ProtocolError, match="no stretch"):
        world.tell(Asked(first.member, b"", 1, told))
    with pytest.raises(ProtocolError, match="cut off"):
        world.tell(Asked(first.member, b"", 1, told[:7]))
    second.go_on()
    assert work.ticket in world.state.tickets
    world.tell(Asked(second.member, b"", 1, np.array([work.ticket, 99], np.int64).tobytes()))
    assert work.ticket in world.state.tickets, "it is another's"


def test_idle_workers_do_not_wait_for_a_rank_that_paused_with_a_stretch() -> None:
    (member,) = cached(samples=64)
    world = member.world
    other = Member(world, np.arange(100, 200), keys=DECODED, budget=1 << 27)
    other.begin()
    until_stretch(member)
    assert other.idle() is None, "somebody has something to do"
    world.now += 2 * world.state.patience
    fill = other.idle()
    assert fill is not None
    other.finish(fill, 0, len(fill.forms), prepared)


# -- a rank's side -----------------------------------------------------------------------------------------------


class Loader:
    """A rank with a coordinator, whose workers are done at once and report as real ones do."""

    def __init__(self, host: Host, samples: int = 100) -> None:
        self.rank = Rank(host, samples=samples, augmented="")
        self.asks: list[Request] = []
        plain = self.rank.client._send

        def send(request: Request, beside: bytes | None) -> None:
            self.asks.append(request)
            plain(request, beside)

        self.rank.client._send = send
        self.client: DrawClient = self.rank.client
        self.coordinator = Coordinator(
            SharedDirectory(self.client, dict.fromkeys(CACHEABLE, 0)), rows_per_order=5
        )

    def epoch(self, number: int) -> list[Draw]:
        """All batches of an epoch."""
        self.coordinator.feed(SharedDraws(self.client, seed=0, epoch=number))
        return self.rest()

    def rest(self) -> list[Draw]:
        """All batches that are left."""
        found: list[Draw] = []
        for _ in range(500):
            orders = self.coordinator.credit(Slot(0, 0))
            if orders is None and not self.coordinator.later:
                return found
            for order in orders or []:
                self.finish(order.id)
            batch = self.coordinator.take()
            found += [batch.draw] if batch is not None else []
            self.rank.host.speak()
        raise AssertionError("an epoch does not end")

    def finish(self, number: int) -> None:
        order = self.coordinator._orders[number].order
        rows = []
        grants = np.frombuffer(order.grants, np.int64).reshape(-1, 3).tolist()
        for row, (form, offset, _) in zip(
            np.flatnonzero(np.frombuffer(order.keep, np.uint8)), grants, strict=False
        ):
            rows.append((order.first + row, form, offset, 100))
        if order.ticket >= 0:
            published = np.array(rows, np.int64).tobytes()
            report = Finished(order.ticket, order.first, len(order.indices) // 8, published)
            self.rank.host.hear(self.rank.member, report, None)
        self.coordinator.done(OrderDone(order.id, [], spent=Spent(prepared=len(order.indices) // 8)))

    @property
    def tickets(self) -> dict[int, object]:
        return dict(self.rank.host.commons.state.tickets)


def test_a_stretch_is_cut_into_batches_and_told_with_the_next_ask() -> None:
    loader = Loader(Host(1))
    for number in range(3):
        draws = loader.epoch(number)
        assert samples_of(draws) == list(range(100))
        assert [draw.step for draw in draws] == list(range(13))
        assert [draw.position for draw in draws] == [*range(8, 100, 8), 100]
        assert [draw.last for draw in draws] == [False] * 12 + [True]
        assert not loader.tickets, "all is told at the end of an epoch"
    stretched = [draw.lookup for draw in draws if draw.lookup is not None and draw.lookup.stretch]
    assert len(stretched) == 13 and all(lookup.forms.all() for lookup in stretched)
    asks = [ask for ask in loader.asks if isinstance(ask, Ask)]
    assert len(asks) < 15 + 6 + 6 and any(ask.over and ask.spent is not None for ask in asks)


def test_the_same_instance_never_comes_twice_out_of_a_stretch() -> None:
    loader = Loader(Host(1))
    seen = set()
    for number in range(3):
        for draw in loader.epoch(number):
            assert draw.randomness is not None
            keys = {(draw.randomness, index) for index in draw.indices.tolist()}
            assert not keys & seen
            seen |= keys


def stretched(loader: Loader) -> list[int]:
    """The orders of one batch out of a stretch of which others are left."""
    loader.epoch(0)
    loader.coordinator.feed(SharedDraws(loader.client, seed=0, epoch=1))
    while True:
        orders = loader.coordinator.credit(Slot(0, 0)) or []
        if orders and not loader.client._drawn:
            for order in orders:
                loader.finish(order.id)
        elif orders and all(order.ticket < 0 for order in orders):
            return [order.id for order in orders]
        elif orders:
            for order in orders:
                loader.finish(order.id)
        loader.rank.host.speak()


@pytest.mark.parametrize("lost", [False, True])
def test_what_is_left_of_a_stretch_is_given_up_with_its_epoch(lost: bool) -> None:
    loader = Loader(Host(1))
    orders = stretched(loader)
    assert loader.tickets
    if lost:  # one worker dies, and others do without the cache
        again = loader.coordinator.lost(orders[0], "by chance")
        assert {order.ticket for order in again} == {-1} and not any(order.forms for order in again)
        for order in again:
            loader.finish(order.id)
        orders = orders[1:]
    loader.coordinator.abandon()
    loader.client.drop()
    assert loader.tickets, "workers still read"
    for order in orders:
        loader.finish(order)
    assert not loader.tickets
    assert samples_of(loader.epoch(2)) == list(range(100))


def test_another_host_goes_on_where_a_stretch_was() -> None:
    loader = Loader(Host(1))
    loader.epoch(0)
    loader.coordinator.feed(SharedDraws(loader.client, seed=0, epoch=1))
    got = []
    while sum(len(draw.indices) for draw in got) < 40:
        for order in loader.coordinator.credit(Slot(0, 0)) or []:
            loader.finish(order.id)
        batch = loader.coordinator.take()
        got += [batch.draw] if batch is not None else []
        loader.rank.host.speak()
    assert loader.client._drawn, "some of it is here and was not taken"
    loader.client.lose_host()
    loader.rank.host = Host(2)
    loader.rank.member = loader.rank.host.take(loader.client)
    loader.client.go_on_at_new_host()
    got += loader.rest()
    assert samples_of(got) == list(range(100))


def test_ends_are_told_at_once_where_an_ask_waits_for_its_answer() -> None:
    """The host may wait for room, which those have, and then nobody would ask again."""
    loader = Loader(Host(1))
    orders = stretched(loader)
    read = set(loader.tickets)
    while loader.client._drawn:
        orders += [order.id for order in loader.coordinator.credit(Slot(0, 0)) or []]
        loader.rank.host._out.clear()  # no answer comes any more
    loader.client._asked.append(None)
    loader.asks.clear()
    for order in orders:
        loader.finish(order)
    assert {type(request) for request in loader.asks} == {Finished} and not loader.client._ended
    assert read and not read & set(loader.tickets)


def test_a_jobs_own_order_is_a_stretch_where_it_is_only_read() -> None:
    host = Host(1)
    rank = Rank(host, sampling="uniform", augmented="")
    for epoch in range(2):
        own = UniformDraws(lambda: UniformEpoch(40, Geometry(8), seed=5, epoch=0, shuffle=True), 5)
        draws = SharedDraws(rank.client, seed=5, epoch=epoch, own=own)
        while (draw := rank.draw(draws)) is not None:
            assert draw.lookup is not None and draw.of_all_ranks is None and draw.randomness is None
            assert draw.lookup.stretch == bool(epoch)
            if epoch:
                rank.client.done(draw.lookup.ticket, draw.lookup.instance, 8, Spent())
                continue
            rows = [(row, form, at, 100) for row, form, at, _ in draw.lookup.grants.tolist()]
            report = Finished(draw.lookup.ticket, 0, 8, np.array(rows, np.int64).tobytes())
            host.hear(rank.member, report, None)
    rank.client.drop()
    assert not host.commons.state.tickets


def test_rows_of_a_lost_host_are_not_told_to_the_next() -> None:
    loader = Loader(Host(1))
    orders = stretched(loader)
    loader.client.lose_host()
    loader.client.instance = 2
    loader.asks.clear()
    for order in orders:
        loader.finish(order)
    assert not loader.asks and not loader.client._ended


def test_a_draw_of_an_epoch_that_was_left_is_given_up_as_a_whole() -> None:
    sent: list[Request] = []
    client = DrawClient(lambda request, beside: sent.append(request))
    client.instance = 1
    rows = np.arange(16)
    client.hear(
        Drawn(7, 3, 0, 1, 7, rows.tobytes(), bytes(16), rows.tobytes(), rows.tobytes(), bytes(16), b"", 16, 16, False,
              stretch=[8, 8])
    )  # fmt: skip
    assert sent == [Finished(7, 0, 16)] and not client._drawn


def test_done_is_heard_twice_without_harm() -> None:
    (member,) = cached(samples=64)
    work = until_stretch(member)
    for _ in range(2):
        member.world.tell(Done(member.member, Finished(work.ticket, 0, len(work.forms))))
    assert not member.world.state.tickets
