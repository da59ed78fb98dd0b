"""The preferences of ``auto`` and ``opportunistic``: which samples a job is given when it could be given others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from headrace.core.bits import Bits, Words
from headrace.sampling import Auto, CacheView, Opportunistic, Remaining

SIZE = 1000


def words(*parts: range) -> Words:
    """A set of ranges."""
    return Bits.of(SIZE, [one for part in parts for one in part]).words


def jobs(*parts: Sequence[int]) -> Remaining:
    """Jobs 0, 1, ... that need these."""
    remaining = Remaining(SIZE)
    for job, part in enumerate(parts):
        remaining.join(job, Bits.of(SIZE, part))
    return remaining


def test_auto_takes_ready_samples_best_form_first() -> None:
    view = CacheView((words(range(0, 10)), words(range(5, 40))), words(), ())
    drawn = Auto().draw(jobs(range(SIZE)), 0, 20, view, 1).tolist()
    assert sorted(drawn[:10]) == list(range(10))
    assert set(drawn[10:]) <= set(range(10, 40))


def test_auto_prepares_what_peers_need_and_leaves_pending_for_last() -> None:
    remaining = jobs(range(0, 100), range(60, SIZE), range(80, 300))
    view = CacheView((words(range(0, 5)),), words(range(90, 100)), (1, 2))
    auto = Auto()
    drawn = auto.draw(remaining, 0, 12, view, 3).tolist()
    assert sorted(drawn[:5]) == list(range(5))
    assert set(drawn[5:]) <= set(range(80, 90)), "both peers need these, and nobody prepares them yet"
    second = auto.draw(remaining, 0, 15, view, 4).tolist()
    assert set(second) <= set(range(60, 90)), (
        "too few are left that both need: those that the larger peer needs"
    )
    rest = auto.draw(remaining, 0, 100, view, 5).tolist()
    assert sorted(rest[-10:]) == list(range(90, 100))
    assert remaining.left(0) == 0


def test_auto_keeps_a_peer_only_if_enough_candidates_stay() -> None:
    remaining = jobs(range(0, 50), range(45, SIZE), range(0, 30))
    drawn = Auto().draw(remaining, 0, 10, CacheView((), words(), (1, 2)), 0).tolist()
    assert set(drawn) <= set(range(0, 30)), (
        "the larger peer shares 5, which is not enough; the smaller one 30"
    )


def test_auto_shares_with_the_peer_that_needs_most_where_it_cannot_with_both() -> None:
    remaining = jobs(range(0, 100), range(50, 100), [*range(0, 50), *range(100, SIZE)])
    drawn = Auto().draw(remaining, 0, 10, CacheView((), words(), (1, 2)), 0).tolist()
    assert set(drawn) <= set(range(0, 50))


def test_auto_spreads_over_what_it_could_take() -> None:
    """Uniform inside a set: a chi-square over who is drawn, from 100 candidates."""
    counts = np.zeros(100)
    for key in range(400):
        drawn = Auto().draw(jobs(range(SIZE)), 0, 10, CacheView((words(range(100)),), words(), ()), key)
        counts[drawn] += 1
    chi_square = ((counts - 40) ** 2 / 40).sum()
    assert chi_square < 99 + 7 * 198**0.5


def test_opportunistic_replaces_misses_by_as_many_hits_as_there_are() -> None:
    remaining = jobs(range(SIZE))
    view = CacheView((words(range(0, 8)), words(range(4, 12))), words(), ())
    sampler = Opportunistic()
    first = sampler.draw(remaining, 0, 10, view, 1).tolist()
    assert set(first) <= set(range(12))
    second = sampler.draw(remaining, 0, 10, view, 2).tolist()
    assert set(second[:2]) == set(range(12)) - set(first)
    assert all(sample >= 12 for sample in second[2:])
    assert remaining.left(0) == SIZE - 20, "what was displaced is still to come"


@pytest.mark.parametrize("ready", [0, 3, 10, 40])
def test_opportunistic_is_the_swap_that_the_paper_describes(ready: int) -> None:
    """Drawn the long way: random samples, then misses swapped. Every sample must be as likely as it is there."""
    size, wanted, draws = 40, 10, 3000
    cached = Bits.of(size, range(ready))
    long, short = np.zeros(size), np.zeros(size)
    rng = np.random.default_rng(0)
    for key in range(draws):
        chosen = rng.permutation(size)[:wanted]
        hits, misses = chosen[chosen < ready], chosen[chosen >= ready]
        others = rng.permutation(np.setdiff1d(np.arange(ready), hits))[: len(misses)]
        long[hits] += 1
        long[others] += 1
        long[misses[: len(misses) - len(others)]] += 1
        remaining = Remaining(size)
        remaining.join(0, Bits.full(size))
        view = CacheView((cached.words,), Bits.empty(size).words, ())
        short[Opportunistic().draw(remaining, 0, wanted, view, key)] += 1
    # Two counts of one probability p differ by less than seven standard deviations.
    p = (long + short) / (2 * draws)
    assert (np.abs(long - short) <= 7 * (2 * draws * p * (1 - p)) ** 0.5).all()
    assert long[long == draws].sum() == short[short == draws].sum(), "what is certain in one is in the other"


def test_auto_takes_what_is_near_before_what_storage_has_to_give() -> None:
    remaining = jobs(range(0, 100), range(50, SIZE))
    view = CacheView((words(range(0, 5)),), words(range(90, 100)), (1,), near=words(range(40, 60), range(3)))
    auto = Auto()
    drawn = auto.draw(remaining, 0, 12, view, 3).tolist()
    assert sorted(drawn[:5]) == list(range(5))
    assert set(drawn[5:]) <= set(range(50, 60)), "near, and a peer needs them, too"
    more = auto.draw(remaining, 0, 15, view, 4).tolist()
    assert len(set(more) & set(range(40, 60))) == 13, "all that is left of them; and then others"
    assert not set(more) & set(range(90, 100))


@pytest.mark.parametrize("room", [0, 3])
def test_auto_takes_what_is_near_first_where_nothing_is_kept(room: int) -> None:
    view = CacheView((), words(range(4)), (1,), room, near=words(range(50, 60)))
    drawn = Auto().draw(jobs(range(100), range(100)), 0, 12, view, 1).tolist()
    assert len(set(drawn) & set(range(50, 60))) == 8 and set(drawn[-4:]) == set(range(4))
