"""What the outcomes say: whether a loader teaches as well as torch's, and whether positions are uniform."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from benchmarks.training.jobs import Outcome
from numpy.typing import NDArray

GROUPS = 40
QUARTERS = 4


@dataclass(frozen=True)
class Accuracy:
    """The accuracies of one loader's jobs, in points (per cent)."""

    mean: float
    deviation: float
    error: float
    """Standard error of the mean."""
    runs: int

    @classmethod
    def of(cls, outcomes: Sequence[Sequence[Outcome]]) -> Accuracy:
        """Of the jobs of each seed.

        Jobs that ran together may have learned from related orders, and then vary less among each other than
        from seed to seed. So the standard error is the larger of the one over all jobs as if they had nothing to do
        with each other and the one over the means of the seeds.
        """
        by_seed = [[100 * outcome.accuracy for outcome in jobs] for jobs in outcomes]
        every = [value for jobs in by_seed for value in jobs]
        deviation = statistics.stdev(every) if len(every) > 1 else math.nan
        errors = [deviation / math.sqrt(len(every))]
        if len(by_seed) > 1:
            means = [statistics.fmean(jobs) for jobs in by_seed]
            errors.append(statistics.stdev(means) / math.sqrt(len(means)))
        return cls(statistics.fmean(every), deviation, max(errors), len(every))


@dataclass(frozen=True)
class Positions:
    """How far the orders that jobs saw are from uniformly random ones."""

    chi2: float
    """Chi-square over its degrees of freedom, mean over all jobs: about 1 for random orders."""
    p: float
    """The smallest p-value of any job and test, times their number: small only if some order was not random."""
    again: float
    """Share of an epoch's first quarter that was in the first quarter of the epoch before; 0.25 for random ones."""
    wrong: int
    """Samples that were given twice, or not at all, in an epoch."""

    @classmethod
    def of(cls, outcomes: Sequence[Sequence[Outcome]], size: int) -> Positions:
        """Test each job by itself, because jobs that share do not draw independently of each other.

        Two tables of (group of samples) by (quarter of the epoch), summed over epochs. In one the groups are
        ranges of indices. In the other they are the quarters that samples were in in the epoch before: a sampler
        that gives what is cached first gives the same samples first again.
        """
        jobs = [outcome.batches for together in outcomes for outcome in together]
        fixed = np.arange(size) * GROUPS // size
        ps, ratios, again, wrong = [], [], [], 0
        for epochs in jobs:
            placed = [quarters(epoch, size) for epoch in epochs]
            for epoch in epochs:
                given = np.bincount(np.concatenate(epoch), minlength=size)
                wrong += int(np.abs(given - 1).sum())
            tests = [[(fixed, GROUPS, now) for now in placed]]
            tests.append([(old, QUARTERS, now) for old, now in itertools.pairwise(placed)])
            for tables in tests:
                if tables:
                    found = [chi_square(groups, count, now) for groups, count, now in tables]
                    total, freedom = sum(value for value, _ in found), sum(number for _, number in found)
                    ps.append(p_value(total, freedom))
                    ratios.append(total / freedom)
            again += [np.mean(old[now == 0] == 0) for old, now in itertools.pairwise(placed)]
        p = min(1.0, min(ps) * len(ps))
        return cls(statistics.fmean(ratios), p, float(np.mean(again)) if again else math.nan, wrong)


def quarters(epoch: Sequence[NDArray[np.int64]], size: int) -> NDArray[np.int64]:
    """The quarter of the epoch in which each sample came. Rows of one batch have no order among each other."""
    found = np.zeros(size, np.int64)
    for at, batch in enumerate(epoch):
        found[batch] = QUARTERS * at // len(epoch)
    return found


def chi_square(groups: NDArray[np.int64], count: int, placed: NDArray[np.int64]) -> tuple[float, int]:
    """Chi-square of the table of groups by quarters, and its degrees of freedom.

    Both margins are fixed in a permutation; by the factor (n - 1) / n its mean is the degrees of freedom exactly.
    """
    table = np.bincount(groups * QUARTERS + placed, minlength=count * QUARTERS).reshape(count, QUARTERS)
    expected = np.outer(table.sum(1), table.sum(0)) / len(placed)
    value = float(((table - expected) ** 2 / np.maximum(expected, 1e-9)).sum())
    return value * (len(placed) - 1) / len(placed), (count - 1) * (QUARTERS - 1)


def p_value(chi2: float, freedom: int) -> float:
    """The chance of ``chi2`` or more, by Wilson and Hilferty's cube root: good to a few per cent."""
    spread = 2 / (9 * freedom)
    deviation = ((chi2 / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return math.erfc(deviation / math.sqrt(2)) / 2
