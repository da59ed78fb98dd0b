"""What headrace promises of a bucket, computed from the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.bucket.contenders import ENTRIES, Entry
from benchmarks.common.report import Target, target
from benchmarks.common.rounds import Run, ratio, undisturbed

Runs = Mapping[str, Sequence[Run | None]]
EPOCHS = {"first": "first_images_s", "later": "later_images_s"}
ROOM = {"none": "no cache", "whole": "cache for all", "half": "cache for half"}
MOVED = 0.52
"""The part of the bytes that a later epoch may move with a disk tier for half of it."""


def name_of(limit: str, entry: str) -> str:
    """What a contender's runs behind a limit are called."""
    return f"{limit} {entry}"


def missing(name: str, wanted: str, why: str) -> Target:
    """A target of which nothing was measured."""
    return Target(name, None, wanted, False, note=f"not measured: {why}")


class Rounds:
    """The runs of all rounds, and why there are none of some."""

    def __init__(self, runs: Runs, repeats: int, reasons: Mapping[str, str]) -> None:
        self.all, self.repeats, self.reasons = runs, repeats, reasons
        self.quiet = {name: undisturbed(mine) for name, mine in runs.items()}

    def of(self, name: str, quiet: bool = True) -> Sequence[Run | None]:
        """One for each round, or None."""
        return (self.quiet if quiet else self.all).get(name, [None] * self.repeats)

    def best(self, names: Sequence[str], field: str) -> list[Run | None]:
        """The fastest of each round."""
        found: list[Run | None] = []
        for number in range(self.repeats):
            runs = [run for name in names if (run := self.of(name)[number]) is not None]
            found.append(max(runs, key=lambda run: float(run[field])) if runs else None)
        return found

    def why(self, *names: str) -> str:
        """Why there is nothing of at least one of these; an empty string where there is something of each."""
        for name in names:
            if name in self.reasons:
                return f"{name.partition(' ')[2]}: {self.reasons[name]}"
            if name not in self.all:
                return f"{name.partition(' ')[2]} was left out"
        return ""

    def target(self, name: str, values: Sequence[float], sign: str, limit: float, *needed: str) -> Target:
        """A target, or the reason why one of what it needs is missing."""
        reason = "" if values else self.why(*needed)
        return missing(name, f"{sign} {limit:g}", reason) if reason else target(name, values, sign, limit)


def compute(rounds: Rounds, limits: Sequence[str]) -> list[Target]:
    """All targets. Ratios are of runs of the same round; times count only from undisturbed runs.

    Behind the first of ``limits`` everybody is compared on his own, behind the others the best of those with as much
    cache.
    """
    found = []
    for limit in limits:
        for epoch, field in EPOCHS.items():
            for title, rivals in _rivals(each=limit == limits[0]):
                ours = name_of(limit, f"headrace-{rivals[0].cache}")
                theirs = [name_of(limit, rival.name) for rival in rivals]
                values = ratio(rounds.of(ours), rounds.best(theirs, field), field)
                name = f"{limit}: {epoch} epoch, images/s over {title}"
                found.append(
                    rounds.target(name, values, ">=", 1.0, ours, *(theirs if len(theirs) == 1 else []))
                )
    return [*found, *_tier(rounds, limits[0]), _exact(rounds)]


def _rivals(each: bool) -> list[tuple[str, list[Entry]]]:
    """Whom headrace is compared with, and what they are called."""
    peers = [entry for entry in ENTRIES if entry.environment == "peers"]
    if each:
        return [(f"{peer.label}, {ROOM[peer.cache]}", [peer]) for peer in peers]
    rooms = dict.fromkeys(peer.cache for peer in peers)
    return [(f"the best, {ROOM[room]}", [peer for peer in peers if peer.cache == room]) for room in rooms]


def _tier(rounds: Rounds, limit: str) -> list[Target]:
    """What the disk tier saves. What the network adds to the photos' bytes is in both sides of the ratio."""
    whole, half, none = (name_of(limit, f"headrace-{name}") for name in ("whole", "half-steps", "none-steps"))
    requests = [run["later_requests"] for run in rounds.of(whole, quiet=False) if run is not None]
    moved = ratio(rounds.of(half, quiet=False), rounds.of(none, quiet=False), "later_bytes")
    return [
        rounds.target("disk tier for all: requests of a later epoch", requests, "<=", 0, whole),
        rounds.target(
            "disk tier for half: bytes of a later epoch over those without a tier",
            moved,
            "<=",
            MOVED,
            half,
            none,
        ),
    ]


def _exact(rounds: Rounds) -> Target:
    ours = [name for name in rounds.all if name.partition(" ")[2].startswith("headrace-")]
    values = [
        run["missing"] + run["repeated"]
        for name in ours
        for run in rounds.of(name, quiet=False)
        if run is not None
    ]
    name = "photos that an epoch of headrace left out, or gave twice"
    return target(name, values, "<=", 0) if values else missing(name, "<= 0", "headrace was not")
