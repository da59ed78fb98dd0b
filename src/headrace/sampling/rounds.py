"""Rounds of dependent sampling, decided on the sizes of a tree's vertices and leaves alone.

In a round every job gets one sample of its set. The round goes down the tree. At a vertex one random number
decides for all jobs that have none yet: a job takes a sample of the vertex with the probability that the vertex
has in what is left of its set. That probability falls with the size of the set, so the takers are the first so
many of the jobs, and all of them get the same sample. The others have declined the vertex, and go on with their
sets without it. Where nobody takes, the first job alone takes a sample of its leaf. So each job's sample is
uniformly random in its set, and as many jobs share it as can (for two jobs this is the optimum).

Samples are **tokens** here: numbers for "the next random one of this pool", where a pool is a vertex or a leaf
as it was at the start. A sample that some took stays with the others: it moves on to the vertex of the first
job behind the takers, and to the leaves of those jobs before them that have it. There it can be drawn again, so
it keeps its token.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np

from headrace.core import random as rnd


def uniform_numbers(key: int, chunk: int = 1024) -> Iterator[float]:
    """Random numbers in [0, 1) without end, made ``chunk`` at a time."""
    starts = range(0, 1 << 62, chunk)
    chunks = (rnd.uniforms(key, np.arange(start, start + chunk))[:, 0].tolist() for start in starts)
    return chain.from_iterable(chunks)


class _Pool:
    """Tokens to draw from: some that nobody has drawn yet, and some that moved here."""

    __slots__ = ("drawn", "fresh", "moved")

    def __init__(self, size: int) -> None:
        self.fresh = size
        self.moved: list[int] = []
        self.drawn: list[int] = []
        """The tokens that were made for samples of this pool."""

    def pick(self, at: int, token: int) -> int:
        """Draw the one at this place; ``token`` is the name for a fresh one."""
        if at < self.fresh:
            self.fresh -= 1
            self.drawn.append(token)
            return token
        at -= self.fresh
        self.moved[at], self.moved[-1] = self.moved[-1], self.moved[at]
        return self.moved.pop()


class Rounds:
    """What a number of rounds decided."""

    def __init__(self, vertices: list[int], leaves: list[int]) -> None:
        self.tokens = 0
        """How many tokens there are, numbered from 0."""
        self.rows: list[int] = []
        """The tokens of all jobs in the first round, in the second, and so on."""
        self._vertices = [_Pool(size) for size in vertices]
        self._leaves = [_Pool(size) for size in leaves]

    def vertex_tokens(self, place: int) -> list[int]:
        """The tokens that stand for random samples of a vertex."""
        return self._vertices[place].drawn

    def leaf_tokens(self, place: int) -> list[int]:
        """The tokens that stand for random samples of a leaf."""
        return self._leaves[place].drawn


def play(sizes: list[int], vertices: list[int], rounds: int, key: int) -> Rounds:
    """Play rounds with the sets of these sizes (ascending) and the tree's vertices; nobody may run out of samples.

    For n jobs a round costs at most n steps, however large the sets are.
    """
    number = uniform_numbers(key, min(2 * rounds * len(sizes), 4096)).__next__
    shared, leaves = 0, []
    for size, vertex in zip(sizes, vertices, strict=True):
        shared += vertex
        leaves.append(size - shared)
    plan = Rounds(vertices, leaves)
    rows, pools, beside = plan.rows, plan._vertices, plan._leaves
    held, token, jobs = list(vertices), 0, len(sizes)
    for gone in range(rounds):
        first = start = 0  # the first job without a sample, and the first vertex that it has not declined
        away = gone  # by how much each set is smaller than it was: samples given, and vertices declined
        moves: list[tuple[int, int]] = []
        while first < jobs:
            group = held[first] if start == first else sum(held[start : first + 1])
            chance, own = number(), sizes[first] - away
            behind = first + 1
            if chance * own < group:
                while behind < jobs and chance * (sizes[behind] - away) < group:
                    behind += 1
                at, vertex = int(number() * group), start
                while at >= held[vertex]:
                    at -= held[vertex]
                    vertex += 1
                picked = pools[vertex].pick(at, token)
                rows += [picked] * (behind - first)
                for job in range(vertex, first):
                    beside[job].moved.append(picked)
                held[vertex] -= 1
                if behind < jobs:
                    moves.append((behind, picked))
            else:
                picked = beside[first].pick(int(number() * (own - group)), token)
                rows.append(picked)
            if picked == token:
                token += 1
            away += group
            start, first = first + 1, behind
        # Only now: in this round, those behind the takers have declined what moves to them.
        for behind, picked in moves:
            held[behind] += 1
            pools[behind].moved.append(picked)
    plan.tokens = token
    return plan
