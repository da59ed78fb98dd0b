"""What was given out, sample by sample over all ranks, and what is wrong with it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.trainers.data import SAMPLES


@dataclass(frozen=True)
class Rule:
    """What a case has to give."""

    epochs: tuple[int, ...] = (0, 1, 2)
    loaders: int = 1
    """Loaders that one rank used, one after the other: each has a cache of its own."""
    exact: tuple[str, ...] = ()
    """Kinds of which each sample comes once, also where torch would repeat some to make shares equal."""
    as_if: str = ""
    """The case that this one, interrupted, is to equal."""
    skips: bool = False
    """Batches are skipped by number: a sample that is repeated to make shares equal may have come first in one of
    those, and then is augmented as if it had not come before."""


class Result:
    """What the ranks of one case and kind wrote down."""

    def __init__(self, folder: Path, world: int) -> None:
        self.ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]

    @property
    def error(self) -> str:
        """The first error of any rank."""
        return next((rank["notes"]["error"] for rank in self.ranks if "error" in rank["notes"]), "")

    def rows(self, rank: int, epoch: int) -> list[tuple[int, int]]:
        """Samples and digests of one rank's epoch, in order."""
        return [(number, digest) for number, digest in self.ranks[rank]["epochs"].get(str(epoch), [])]

    def counts(self, epoch: int) -> Counter[int]:
        """How often each sample was given out in an epoch."""
        return Counter(number for rank in range(len(self.ranks)) for number, _ in self.rows(rank, epoch))

    def reads(self) -> list[list[int]]:
        """How often each file was read, rank by rank."""
        return [rank["reads"] for rank in self.ranks]


def faults(result: Result, kind: str, rule: Rule, torch: Result, whole: Result | None) -> list[str]:
    """What is wrong; ``torch``: what torch's loader gave in the same place; ``whole``: what was not interrupted."""
    if result.error:
        return [result.error.strip().splitlines()[-1]]
    found = []
    for epoch in rule.epochs:
        counts = result.counts(epoch)
        most = max(counts.values(), default=0)
        if kind in rule.exact:
            if counts != Counter(range(SAMPLES)):
                found.append(
                    f"epoch {epoch}: {len(counts)} samples, up to {most} times, {counts.total()} in all"
                )
        else:
            expected = torch.counts(epoch)
            if sorted(counts.values()) != sorted(expected.values()):
                found.append(f"epoch {epoch}: {counts.total()} given out, and {expected.total()} by torch")
            elif set(counts) != set(range(SAMPLES)):
                found.append(f"epoch {epoch}: {SAMPLES - len(counts)} samples missed")
    if not (kind == "dataset" and rule.as_if):  # trainers seed the generators again when they start again
        found += _crops(result, rule)
    if whole is not None:
        found += _same(result, kind, rule, whole)
    if kind in ("cache", "share"):
        found += _reads(result, kind, rule)
    return found


def _crops(result: Result, rule: Rule) -> list[str]:
    seen: dict[tuple[int, int], int] = {}
    for epoch in rule.epochs:
        for rank in range(len(result.ranks)):
            for row in result.rows(rank, epoch):
                if seen.setdefault(row, epoch) != epoch:
                    return [f"sample {row[0]}: the same crop in epochs {seen[row]} and {epoch}"]
    return []


def _same(result: Result, kind: str, rule: Rule, whole: Result) -> list[str]:
    for epoch in rule.epochs:
        for rank in range(len(result.ranks)):
            one: list[Any] = result.rows(rank, epoch)
            other: list[Any] = whole.rows(rank, epoch)
            times = Counter(number for number, _ in other)
            if kind == "dataset":
                one, other = [number for number, _ in one], [number for number, _ in other]
            elif rule.skips:
                one, other = (
                    [(number, digest if times[number] == 1 else None) for number, digest in rows]
                    for rows in (one, other)
                )
            if one != other:
                return [f"epoch {epoch}: not what an uninterrupted run gives"]
    return []


def _reads(result: Result, kind: str, rule: Rule) -> list[str]:
    delivered = sum(result.counts(epoch).total() for epoch in rule.epochs)
    total = sum(map(sum, result.reads()))
    if kind == "share":  # two ranks may read one file at the same time
        if total > 1.5 * SAMPLES:
            return [f"{total} files read for {delivered} samples: the shared cache is not used"]
        return []
    if any(max(reads) > rule.loaders for reads in result.reads()):
        return [f"{total} files read for {delivered} samples: the cache is not kept"]
    return []


def verdict(result: Result, rule: Rule) -> str:
    """What a case gave that has no faults, in a word."""
    once = all(result.counts(epoch) == Counter(range(SAMPLES)) for epoch in rule.epochs)
    return "once" if once else "padded"
