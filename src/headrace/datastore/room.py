"""Who may come in, and who has to go for it. It reads and writes the books, and touches no files.

Each content counts until its files are gone, and what is on its way counts as much as it may ever take. So whoever
has been given room may write, once the books say that all together is within the quota.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.core.sizes import show_size
from headrace.datastore.books import every, first
from headrace.datastore.errors import NoRoom
from headrace.eviction.lrfu import Candidate, CostAwareLRFU, History

DAY = 86400.0
Lives = Callable[[int], bool]
"""Whether the process with a token is there."""


@dataclass
class Usage:
    """The books as of one moment."""

    here: dict[str, Candidate] = field(default_factory=dict)
    """Contents, by their keys."""
    users: dict[str, list[str]] = field(default_factory=dict)
    """The datasets of each content."""
    going: dict[str, int] = field(default_factory=dict)
    """Contents that somebody deletes, and what they take until then."""
    orphans: list[str] = field(default_factory=list)
    """Of these, those whose deleter is gone."""
    incoming: int = 0
    """What may be written by those who live."""
    left: dict[str, int] = field(default_factory=dict)
    """What was left in the middle by those who do not, and what it may take."""
    pids: dict[str, list[int]] = field(default_factory=dict)
    """Processes that use each dataset, or fetch it."""

    @property
    def kept(self) -> int:
        """Bytes that are taken, and stay so unless something is evicted."""
        return sum(one.size for one in self.here.values()) + self.incoming + sum(self.left.values())

    @property
    def taken(self) -> int:
        """Bytes that may be on the disk now."""
        return self.kept + sum(self.going.values())


def take_stock(books: sqlite3.Connection, lives: Lives, now: float) -> Usage:
    """What the books say; ``now`` in seconds."""
    found, alive = Usage(), _memory(lives)
    for row in every(books, "SELECT token, dataset, pid FROM lease"):
        if alive(row["token"]):
            found.pids.setdefault(row["dataset"], []).append(row["pid"])
    pinned = {row["name"] for row in every(books, "SELECT name FROM dataset WHERE pinned")}
    for row in every(books, "SELECT DISTINCT key, dataset FROM object WHERE key IS NOT NULL"):
        found.users.setdefault(row["key"], []).append(row["dataset"])
    for row in every(books, "SELECT * FROM content"):
        names = found.users.get(row["key"], [])
        if row["going"] is not None:
            found.going[row["key"]] = row["bytes"]
            if not alive(row["going"]):
                found.orphans.append(row["key"])
            continue
        found.here[row["key"]] = Candidate(
            row["key"], row["bytes"], row["cost"], History(row["earlier"], row["last"]),
            active=any(name in found.pids for name in names), pinned=any(name in pinned for name in names),
        )  # fmt: skip
    for row in every(books, "SELECT id, reserved, token FROM incoming"):
        if alive(row["token"]):
            found.incoming += row["reserved"]
        else:
            found.left[row["id"]] = row["reserved"]
    return found


def _memory(lives: Lives) -> Lives:
    known: dict[int, bool] = {}

    def ask(token: int) -> bool:
        if token not in known:
            known[token] = lives(token)
        return known[token]

    return ask


@dataclass(frozen=True)
class Removal:
    """What has to be deleted, and is in the books as such."""

    contents: list[str]
    incoming: list[str]


def make_room(
    books: sqlite3.Connection, usage: Usage, need: int, quota: int, free: int, policy: CostAwareLRFU, now: float,
    token: int, what: str,
) -> Removal:  # fmt: skip
    """Mark as going, by the process with ``token``, what has to go for ``need`` bytes; nothing if that is not enough.

    ``free``: what the file system has. ``what``: for whom, as errors say it. Raises ``NoRoom``.
    """
    over = max(usage.kept + need - quota, need - free - sum(usage.going.values()))
    left = []
    for ident, size in sorted(usage.left.items(), key=lambda item: item[1]):
        if over > 0:
            left.append(ident)
            over -= size
    victims = policy.choose(usage.here.values(), max(0, over), now / DAY)
    if victims is None:
        raise NoRoom(refusal(usage, need, quota, free, policy, now, what))
    contents = [one.key for one in victims] + usage.orphans
    books.executemany("UPDATE content SET going = ? WHERE key = ?", [(token, key) for key in contents])
    mark_for_deletion(books, left, token)
    return Removal(contents, left)


def mark_for_deletion(books: sqlite3.Connection, incoming: list[str], token: int) -> None:
    """What was left in the middle is deleted by the process with ``token``; if that dies, by whoever tidies up."""
    books.executemany(
        "UPDATE incoming SET token = ?, since = 0 WHERE id = ?", [(token, ident) for ident in incoming]
    )


def refusal(
    usage: Usage, need: int, quota: int, free: int, policy: CostAwareLRFU, now: float, what: str
) -> str:
    """Why something does not fit, and what can be done."""
    stuck = [one for one in usage.here.values() if not policy.may_go(one, now / DAY)]
    may_go = sum(one.size for one in usage.here.values()) - sum(one.size for one in stuck)
    room = quota - usage.incoming - sum(one.size for one in stuck)
    lines = [
        f"{what} needs {show_size(need)}, and there is room for {show_size(max(0, room))}: the store may take "
        f"{show_size(quota)}, and has {show_size(usage.kept)}"
    ]
    if need <= room:
        lines = [
            f"{what} needs {show_size(need)}, and the store's file system has {show_size(free)} free, and "
            f"{show_size(may_go)} that can be evicted"
        ]
    by_name: dict[str, tuple[int, Candidate]] = {}
    for one in stuck:
        for name in usage.users.get(one.key, ["?"]):
            size, _ = by_name.get(name, (0, one))
            by_name[name] = (size + one.size, one)
    remedies = []
    for name, (size, one) in sorted(by_name.items(), key=lambda item: -item[1][0]):
        if name in usage.pids:
            pids = ", ".join(map(str, sorted(set(usage.pids[name]))))
            lines.append(f"  in use    {name}, {show_size(size)}, by process {pids}")
        elif one.pinned:
            lines.append(f"  pinned    {name}, {show_size(size)}")
            remedies.append(f"headrace data unpin {name}")
        elif not one.active:
            minutes = (one.history.last + policy.cooldown) * 24 * 60 - now / 60
            lines.append(
                f"  just used {name}, {show_size(size)}, stays for {max(1, round(minutes))} min more"
            )
            remedies.append(f"headrace data evict {name}")
    if usage.incoming:
        lines.append(f"  coming in {show_size(usage.incoming)}, set aside for what is being fetched")
    if may_go:
        lines.append(f"  may go    {show_size(may_go)}")
    if need > room:
        remedies.append(f"headrace data quota {-(-(quota + need - room) >> 30)}GiB")
    lines.append("What helps: " + "; ".join(remedies[:4] or ["another disk: set HEADRACE_DATA"]))
    return "\n".join(lines)


def forget_dead(books: sqlite3.Connection, lives: Lives) -> None:
    """Take leases of processes that are gone out of the books."""
    tokens = [row["token"] for row in every(books, "SELECT DISTINCT token FROM lease")]
    dead = [(token,) for token in tokens if not lives(token)]
    books.executemany("DELETE FROM lease WHERE token = ?", dead)


def taken(books: sqlite3.Connection) -> int:
    """What may be on the disk now."""
    contents = first(books, "SELECT COALESCE(SUM(bytes), 0) AS n FROM content")
    incoming = first(books, "SELECT COALESCE(SUM(reserved), 0) AS n FROM incoming")
    assert contents is not None and incoming is not None
    return int(contents["n"]) + int(incoming["n"])
