"""A rank's draws from a shared host, with the commons themselves at the other end and no connection between."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headrace.coordinate.commons import Commons
from headrace.coordinate.coordinator import LATER
from headrace.coordinate.draw_client import DrawClient, told
from headrace.coordinate.events import Answer, Asked, Began, Came, Done, Event, GiveBack, Named
from headrace.coordinate.protocol import Ask, Begin, Finished, Join, Joined, Request
from headrace.coordinate.shared_draws import SharedDraws
from headrace.core.bits import Bits
from headrace.core.errors import HostUnavailable
from headrace.sampling import Draw, Geometry, UniformDraws, UniformEpoch, epoch_order
from tests.coordinate.jobs import identities


class Host:
    """Commons, to which any number of clients speak directly."""

    def __init__(self, instance: int) -> None:
        self.commons = Commons(instance=instance, nonce=instance, span=1 << 36)
        self._clients: dict[int, DrawClient] = {}
        self._out: list[Answer] = []

    def take(self, client: DrawClient) -> int:
        member = len(self._clients) + 1
        ((_, answer),) = self.commons.handle(Came(member, f"token{member}", 0, client.join), 0.0)
        if isinstance(answer, Joined) and answer.identities:
            named = Named(member, identities(np.arange(client.join.samples)).tobytes())
            ((_, answer),) = self.commons.handle(named, 0.0)
        assert isinstance(answer, Joined)
        for shelf in self.commons.state.pool.shelves.values():
            shelf.learn([100])  # else draws would wait until sizes are known
        self._clients[member] = client
        client.instance = self.commons.state.instance
        return member

    def hear(self, member: int, request: Request, beside: bytes | None) -> None:
        if isinstance(request, Begin):
            event: Event = Began(member, request, beside)
        elif isinstance(request, Ask):
            event = Asked(member, request.indices, request.most, request.over, request.spent)
        else:
            assert isinstance(request, Finished)
            event = Done(member, request)
        self._out += self.commons.handle(event, 0.0)

    def speak(self) -> None:
        out, self._out = self._out, []
        for member, reply in out:
            assert not isinstance(reply, GiveBack)
            self._clients[member].hear(reply)


class Rank:
    """A client, and the host that it is at."""

    def __init__(
        self, host: Host, samples: int = 40, batch: int = 8, *, rank: int = 0, ranks: int = 1, **terms: object
    ):
        self.host = host
        self.client = DrawClient(lambda request, beside: self.host.hear(self.member, request, beside))
        base = {"sampling": "auto", "drop_last": False, "augmented": "a", **terms}
        self.client.join = Join(
            name="job", group="group" if ranks > 1 else f"g{id(self)}", rank=rank, world_size=ranks,
            dataset="data", label="data", samples=samples, encoded="", decoded="d", body=100, budget=1 << 22,
            split=None, eviction="auto", batch_size=8, **base,
        )  # fmt: skip
        self.member = host.take(self.client)

    def draw(self, draws: SharedDraws) -> Draw | None:
        for _ in range(100):
            found = draws.draw()
            if found is not LATER:
                assert found is None or isinstance(found, Draw)
                return found
            self.host.speak()
        raise AssertionError("no draw comes")

    def finish(self, draw: Draw) -> None:
        if draw.lookup is not None:
            first, count = draw.lookup.first, len(draw.indices)
            self.client.give_up(draw.lookup.ticket, draw.lookup.instance, first, count)
            self.host.speak()

    def rest(self, draws: SharedDraws) -> list[Draw]:
        found = []
        while (draw := self.draw(draws)) is not None:
            found.append(draw)
            self.finish(draw)
        return found


def samples_of(draws: list[Draw]) -> list[int]:
    return sorted(int(index) for draw in draws for index in draw.indices)


def test_an_epoch_is_all_samples_once_and_says_where_it_ends() -> None:
    rank = Rank(Host(1))
    for epoch in range(3):
        draws = rank.rest(SharedDraws(rank.client, seed=0, epoch=epoch))
        assert samples_of(draws) == list(range(40))
        assert [draw.last for draw in draws] == [False] * 4 + [True]
        assert [draw.position for draw in draws] == [8, 16, 24, 32, 40]


def test_an_epoch_that_goes_on_gives_what_was_not_given() -> None:
    rank = Rank(Host(1))
    given = Bits.empty(40)
    given.add(np.arange(13))
    assert samples_of(rank.rest(SharedDraws(rank.client, seed=0, epoch=0, given=given))) == list(
        range(13, 40)
    )


def test_own_draws_come_back_as_they_are_with_what_the_host_knows_of_them() -> None:
    rank = Rank(Host(1), sampling="uniform", augmented="")

    class Own:
        seed = 5

        def __init__(self) -> None:
            self._epoch = UniformEpoch(40, Geometry(8), seed=5, epoch=0, shuffle=True)
            self.given: list[Draw] = []

        def draw(self) -> Draw | None:
            draw = self._epoch.draw()
            self.given += [draw] if draw is not None else []
            return draw

    own = Own()
    draws = rank.rest(SharedDraws(rank.client, seed=5, epoch=0, own=own))
    for draw, before in zip(draws, own.given, strict=True):
        assert (
            draw.indices is before.indices and draw.position == before.position and draw.last == before.last
        )
        assert draw.lookup is not None and draw.of_all_ranks is None and draw.randomness is None


@pytest.mark.parametrize("after", [1, 3])
@pytest.mark.parametrize("shuffle", [True, False])
def test_another_host_is_told_the_order_and_sees_how_far_it_is(after: int, shuffle: bool) -> None:
    rank = Rank(Host(1), sampling="uniform", augmented="")
    own = UniformDraws(
        lambda: UniformEpoch(40, Geometry(8), seed=5, epoch=2, shuffle=shuffle, position=4), seed=5
    )
    draws = SharedDraws(rank.client, seed=5, epoch=2, own=own)
    got = [rank.draw(draws) for _ in range(after)]
    assert rank.host.commons.futures.on
    rank.client.lose_host()
    rank.host = Host(2)
    rank.member = rank.host.take(rank.client)
    rank.client.go_on_at_new_host()
    futures = rank.host.commons.futures
    assert futures.on
    draw = rank.draw(draws)
    assert draw is not None and futures.on
    (future,) = futures._futures.values()
    # (epochs have five steps; of the one that began at sample 4 so many are drawn)
    assert future.at == 2 * 5 + after + 1
    got += [draw, *rank.rest(draws)]
    assert samples_of([one for one in got if one is not None]) == sorted(
        epoch_order(40, 5, 2, shuffle)[4:].tolist()
    )
    assert futures.on


@pytest.mark.parametrize("seed", [1 << 63, -(1 << 63) - 1, None])
def test_an_order_that_cannot_be_told_is_not(seed: int | None) -> None:
    known = UniformEpoch(40, Geometry(8), seed=5, epoch=0, shuffle=True).draw()
    assert known is not None and known.known is not None
    assert told(known.known) is not None and told(None) is None
    assert told(dataclasses.replace(known.known, seed=seed)) is None


@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_another_host_goes_on_where_the_lost_one_was(after: int) -> None:
    rank = Rank(Host(1))
    draws = SharedDraws(rank.client, seed=0, epoch=0)
    got = [rank.draw(draws) for _ in range(after)]
    rank.client.lose_host()
    rank.host = Host(2)
    rank.member = rank.host.take(rank.client)
    assert not rank.client.go_on_at_new_host(), "one rank waits for nobody"
    got += rank.rest(draws)
    assert samples_of([draw for draw in got if draw is not None]) == list(range(40))


@pytest.mark.parametrize("after", [0, 2, 4])
def test_without_any_host_a_rank_draws_the_rest_for_itself(after: int) -> None:
    rank = Rank(Host(1))
    draws = SharedDraws(rank.client, seed=0, epoch=0)
    got = [rank.draw(draws) for _ in range(after)]
    sent: list[Request] = []
    rank.client._send = lambda request, beside: sent.append(request)
    rank.client.lose_host()
    while True:
        rank.client.draw_alone()
        found = draws.draw()
        if found is None:
            break
        if isinstance(found, Draw):
            got.append(found)
    assert samples_of([draw for draw in got if draw is not None]) == list(range(40))
    alone = [draw for draw in got[after:] if draw is not None and draw.lookup is None]
    assert alone and all(draw.randomness is not None and draw.randomness[1] >= 1 << 40 for draw in alone)


def test_ranks_cannot_draw_alone() -> None:
    host = Host(1)
    ranks = [Rank(host, rank=number, ranks=2) for number in range(2)]
    ranks[0].client.begin(0, explicit=False)
    ranks[0].client.ask()
    with pytest.raises(HostUnavailable, match="agree"):
        ranks[0].client.draw_alone()


def test_rows_that_wait_go_on_with_an_update_or_without_their_host() -> None:
    for lost in (False, True):
        host = Host(1)
        first, second = Rank(host, samples=8), Rank(host, samples=8)
        begun = [SharedDraws(rank.client, seed=0, epoch=0) for rank in (first, second)]
        owner, waiter = first.draw(begun[0]), second.draw(begun[1])
        assert owner is not None and waiter is not None and waiter.waits < 8
        assert second.client.awaits_host and not second.client.updates
        if lost:
            second.client.lose_host()
        else:
            first.finish(owner)
        (update,) = second.client.updates
        assert update.is_same(waiter) and not update.is_same(owner) and update.waits == 8
        assert waiter.waits < 8, "a draw is never changed"
        assert update.lookup is not None and len(update.lookup.forms) == 8


def test_a_draw_that_comes_after_its_epoch_was_left_is_given_up() -> None:
    rank = Rank(Host(1))
    rank.client.begin(0, explicit=False)
    rank.client.ask()
    rank.client.drop()
    rank.client.begin(1, explicit=False)
    rank.host.speak()
    assert rank.client.take() is None
    assert not rank.host.commons.state.tickets
