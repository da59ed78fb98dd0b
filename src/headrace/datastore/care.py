"""Looking after datasets that are in the store: what there is, pins, eviction by hand, the quota."""

from __future__ import annotations

import json
import sqlite3
import time

import msgspec

from headrace.core.sizes import parse_size
from headrace.datastore.books import every, first
from headrace.datastore.errors import DataError, NoSuchDataset
from headrace.datastore.room import DAY, Removal, Usage, forget_dead, mark_for_deletion, take_stock
from headrace.datastore.store import Store


class Dataset(msgspec.Struct, frozen=True):
    """What there is to know of a dataset."""

    name: str
    urls: list[str]
    path: str
    state: str
    """``here``, ``partly``, ``coming``, ``interrupted`` or ``evicted``."""
    pinned: bool
    pids: list[int]
    """Processes that use it."""
    bytes: int
    """On disk, now."""
    shared: int
    """Of these, what other datasets have, too."""
    files: int
    objects: int
    cost: float
    """Seconds to fetch and unpack all of it, as measured."""
    added: float
    used: float
    """When it was used last; 0: never."""


class Overview(msgspec.Struct, frozen=True):
    """The store as a whole."""

    root: str
    quota: int
    bytes: int
    """Taken, by whatever."""
    incoming: int
    """Of these, what is set aside for what is on its way, and what was left in the middle."""
    free: int
    """What the file system has left."""
    datasets: list[Dataset]


def overview(store: Store) -> Overview:
    """All datasets, and what they take."""
    keeper = store.keeper
    with keeper.books.look() as books:
        usage = take_stock(books, keeper.tokens.lives, time.time())
        coming = {
            row["dataset"]: keeper.tokens.lives(row["token"])
            for row in every(books, "SELECT dataset, token FROM incoming ORDER BY token")
        }
        rows = every(books, "SELECT * FROM dataset ORDER BY name")
        found = [_dataset(store, books, row, usage, coming) for row in rows]
        quota = keeper.quota(books)
    incoming = usage.incoming + sum(usage.left.values())
    return Overview(str(store.layout.root), quota, usage.taken, incoming, store.layout.free(), found)


def _dataset(
    store: Store, books: sqlite3.Connection, row: sqlite3.Row, usage: Usage, coming: dict[str, bool]
) -> Dataset:
    name = row["name"]
    objects = every(books, "SELECT key FROM object WHERE dataset = ?", name)
    keys = {one["key"] for one in objects}
    here = [usage.here[key] for key in keys if key in usage.here]
    whole = all(key in usage.here for key in keys)
    files = sum(
        found["files"]
        for one_here in here
        if (found := first(books, "SELECT files FROM content WHERE key = ?", one_here.key)) is not None
    )
    state = "here" if whole else "partly" if here else "evicted"
    if not whole and name in coming:
        state = "coming" if coming[name] else "interrupted"
    return Dataset(
        name=name,
        urls=json.loads(row["urls"]),
        path=str(store.layout.dataset(name)) if whole else "",
        state=state,
        pinned=bool(row["pinned"]),
        pids=sorted(set(usage.pids.get(name, []))),
        bytes=sum(one.size for one in here),
        shared=sum(one.size for one in here if len(usage.users[one.key]) > 1),
        files=files,
        objects=len(objects),
        cost=sum(one.cost for one in here),
        added=row["added"],
        used=max((one.history.last * DAY for one in here), default=0.0),
    )


def pin(store: Store, name: str, *, stays: bool = True) -> None:
    """Say that a dataset is never evicted, or that it may be again."""
    with store.keeper.books.change() as books:
        _check(books, name)
        books.execute("UPDATE dataset SET pinned = ? WHERE name = ?", (int(stays), name))


def evict(store: Store, name: str, *, forget: bool = False) -> int:
    """Delete a dataset's files now; how many bytes that frees. It is fetched again when it is used.

    What other datasets have, too, stays. ``forget``: nothing is left of the dataset, not even its name. Raises
    ``DataError`` where it is pinned, or somebody uses it.
    """
    keeper = store.keeper
    keeper.tidy()
    with keeper.books.change() as books:
        row = _check(books, name)
        forget_dead(books, keeper.tokens.lives)
        usage = take_stock(books, keeper.tokens.lives, time.time())
        if name in usage.pids:
            pids = ", ".join(map(str, sorted(set(usage.pids[name]))))
            raise DataError(f"{name!r} is in use, by process {pids}; it can go when they have ended")
        if row["pinned"]:
            raise DataError(f"{name!r} is pinned; first: headrace data unpin {name}")
        keys = [key for key in usage.here if usage.users.get(key) == [name]]
        left = _left_of(books, name, usage)
        own = keeper.tokens.own
        books.executemany("UPDATE content SET going = ? WHERE key = ?", [(own, key) for key in keys])
        mark_for_deletion(books, left, own)
        if keys or forget:
            books.execute("UPDATE dataset SET view = NULL WHERE name = ?", (name,))
            store.layout.dataset(name).unlink(missing_ok=True)
        if forget:
            books.execute("DELETE FROM dataset WHERE name = ?", (name,))
    freed = sum(usage.here[key].size for key in keys) + sum(usage.left[ident] for ident in left)
    keeper.remove(Removal(keys, left))
    return freed


def _left_of(books: sqlite3.Connection, name: str, usage: Usage) -> list[str]:
    """What was left in the middle of fetching it."""
    rows = every(books, "SELECT id FROM incoming WHERE dataset = ?", name)
    return [row["id"] for row in rows if row["id"] in usage.left]


def _check(books: sqlite3.Connection, name: str) -> sqlite3.Row:
    row = first(books, "SELECT * FROM dataset WHERE name = ?", name)
    if row is None:
        raise NoSuchDataset(name, [row["name"] for row in every(books, "SELECT name FROM dataset")])
    return row


def set_quota(store: Store, size: str | None) -> int:
    """What the store may take from now on, in all processes; None: as by default. In bytes."""
    with store.keeper.books.change() as books:
        if size is None:
            books.execute("DELETE FROM setting WHERE name = 'quota'")
        else:
            parse_size(size, total=1 << 50, option="quota")
            books.execute("INSERT OR REPLACE INTO setting VALUES ('quota', ?)", (size,))
        return store.keeper.quota(books)
