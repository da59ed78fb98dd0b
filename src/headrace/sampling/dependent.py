"""Dependent sampling, after Joader's DSA: jobs draw together, so that one preparation serves many of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core import bits as bitset
from headrace.core import random as rnd
from headrace.core.bits import Bits, Ids
from headrace.sampling.remaining import Remaining
from headrace.sampling.rounds import play
from headrace.sampling.sampler import CacheView, arrange
from headrace.sampling.tree import Tree

_WINDOW, _DRAWS = 512, 3
"""Samples, and draws, that are promised at a time, at least: each time costs a tree."""
_NOTHING: Ids = np.empty(0, np.int64)


@dataclass(frozen=True)
class _Player:
    """A job that takes part in rounds."""

    job: int
    queue: Ids
    left: int
    """Samples that it needs and that are not promised to it."""


class Dependent:
    """Promises samples to many jobs at once, in rounds, a window ahead; hands them out as each job draws.

    Every job's order is uniformly random. Jobs that run at one speed are promised the same samples where their sets
    allow it; one that falls behind has a full queue, and is left out until it draws again. Promises are checked
    against ``remaining`` whenever they are used, so whatever happens to a job's set in between, it is given each of
    its samples once. Peers should be jobs that draw by this policy too, or they are promised what they never fetch.
    """

    name = "dependent"

    def __init__(self, window: int | None = None) -> None:
        """``window``: how many samples are promised ahead; None: some draws, and not too few samples."""
        if window is not None and window < 1:
            raise ValueError(f"a window of {window} samples")
        self._window = window
        self._queues: dict[int, Ids] = {}

    @property
    def nbytes(self) -> int:
        """Memory that the promises take."""
        return sum(queue.nbytes for queue in self._queues.values())

    def draw(self, remaining: Remaining, job: int, count: int, view: CacheView, key: int) -> Ids:
        """See ``Sampler.draw``."""
        count = min(count, remaining.left(job))
        part = 0
        while len(self._queue(remaining, job)) < count:
            self._promise(remaining, job, count, view.peers, rnd.key(key, part))
            part += 1
        queue = self._queues.get(job, _NOTHING)
        drawn = queue[:count]
        # A copy: a view of the tail would keep the whole queue in memory.
        self._queues[job] = queue[count:].copy()
        remaining.give(job, drawn)
        return arrange(drawn, view)

    def forget(self, job: int) -> None:
        """Drop what was promised to the job."""
        self._queues.pop(job, None)

    def promised(self, job: int) -> Ids:
        """What the job will draw next, as far as that is decided."""
        return self._queues.get(job, _NOTHING)

    def _queue(self, remaining: Remaining, job: int) -> Ids:
        """The promises to a job, without samples that it got by other means."""
        queue = self._queues.get(job, _NOTHING)
        if len(queue):
            needed = bitset.test(remaining.words(job), queue)
            if not needed.all():
                queue = self._queues[job] = queue[needed]
        return queue

    def _promise(self, remaining: Remaining, job: int, count: int, peers: tuple[int, ...], key: int) -> None:
        """Play rounds for the job and the peers that have room, until the first of them has none."""
        window = max(self._window or 0, count)
        if self._window is None:
            # (what is left is less than a draw, and would make each promise so much shorter)
            window = max(_WINDOW, _DRAWS * count) + len(self._queue(remaining, job))
        # Peers with less room would cut the rounds into slivers, each at the price of a new tree.
        enough = max(window // 2, 1)
        players, rounds = [], window
        for one in dict.fromkeys((job, *peers)):
            queue = self._queue(remaining, one)
            left = remaining.left(one) - len(queue)
            room = window - len(queue)
            if one == job or (room >= min(enough, rounds) and left):
                players.append(_Player(one, queue, left))
                rounds = min(rounds, room, left)
        sets = [self._unpromised(remaining, player) for player in players]
        if all(player.left == players[0].left for player in players) and all(
            np.array_equal(bits.words, sets[0].words) for bits in sets[1:]
        ):
            chosen = [bitset.choose(sets[0].words, rounds, key)] * len(players)
        else:
            chosen = self._rounds(sets, rounds, key)
        for player, ids in zip(players, chosen, strict=True):
            self._queues[player.job] = np.concatenate([player.queue, ids])

    @staticmethod
    def _unpromised(remaining: Remaining, player: _Player) -> Bits:
        bits = remaining.bits(player.job)
        if len(player.queue):
            bits = bits.copy()
            bitset.drop(bits.words, player.queue)
        return bits

    @staticmethod
    def _rounds(sets: list[Bits], rounds: int, key: int) -> list[Ids]:
        """The samples of each job in each round."""
        tree = Tree()
        for place, bits in enumerate(sets):
            tree.insert(place, bits)
        plan = play(list(tree.sizes), tree.vertex_sizes(), rounds, rnd.key(key, 0))
        samples = np.empty(plan.tokens, np.int64)
        for place in range(len(sets)):
            for beside, tokens in enumerate((plan.vertex_tokens(place), plan.leaf_tokens(place))):
                if tokens:
                    pool = tree.leaf(place) if beside else tree.vertex(place)
                    samples[tokens] = bitset.choose(pool, len(tokens), rnd.key(key, 1 + beside, place))
        given = samples[plan.rows].reshape(rounds, len(sets)).T
        return [given[tree.jobs.index(place)] for place in range(len(sets))]
