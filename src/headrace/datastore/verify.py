"""Looks for damage: every file of a dataset against the digest that was taken when it was written."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headrace.datastore.books import every, first
from headrace.datastore.errors import DataError
from headrace.datastore.fetcher import Show
from headrace.datastore.formats import bare_name
from headrace.datastore.manifest import Record, fault, read_manifest, strangers
from headrace.datastore.room import Removal, forget_dead
from headrace.datastore.store import Store
from headrace.datastore.unpack import FILES

_THREADS = min(8, 2 * (os.cpu_count() or 1))
_AT_ONCE = 1024
Report = Callable[[int, int], None]
"""Told how many bytes were looked at, of how many."""


@dataclass(frozen=True)
class Fault:
    """Something that is not as it was written."""

    dataset: str
    key: str
    """Of its content."""
    path: str
    """Below the dataset's folder."""
    why: str


def verify(store: Store, name: str, report: Report) -> list[Fault]:
    """All faults of a dataset that is here. It is not evicted meanwhile; what is not here has no faults."""
    keeper = store.keeper
    with keeper.books.change() as books:
        forget_dead(books, keeper.tokens.lives)
        books.execute(
            "INSERT OR IGNORE INTO lease VALUES (?, ?, ?, 0)", (keeper.tokens.own, name, os.getpid())
        )
        rows = every(
            books,
            "SELECT key, manifest, bytes, MIN(name) AS name, COUNT(*) OVER () AS count FROM content JOIN object "
            "USING (key) WHERE dataset = ? AND going IS NULL GROUP BY key",
            name,
        )
    found: list[Fault] = []
    total, done = sum(row["bytes"] for row in rows), 0
    with ThreadPoolExecutor(_THREADS, "headrace-verify") as pool:
        for row in rows:
            folder = store.layout.content(row["key"])
            try:
                records = read_manifest(folder, row["manifest"])
            except DataError as error:
                found.append(Fault(name, row["key"], "manifest", str(error)))
                continue
            for record, why in _faults(pool, folder, records):
                done += record.size
                report(min(done, total), total)
                if why:
                    found.append(Fault(name, row["key"], _shown(row, record.path), why))
            found += [
                Fault(name, row["key"], _shown(row, path), "it was not there when this was written")
                for path in strangers(folder, records)
            ]
    return found


def _shown(row: sqlite3.Row, path: str) -> str:
    """Where a content's file is found below the dataset's folder."""
    name: str = row["name"]
    top = bare_name(name) if row["key"].endswith(".out") else name
    if not path.startswith(FILES + "/"):
        return top
    return path[len(FILES) + 1 :] if row["count"] == 1 else os.path.join(top, path[len(FILES) + 1 :])


def _faults(pool: ThreadPoolExecutor, folder: Path, records: list[Record]) -> Iterator[tuple[Record, str]]:
    for start in range(0, len(records), _AT_ONCE):
        some = records[start : start + _AT_ONCE]
        yield from zip(some, pool.map(lambda record: fault(folder, record), some), strict=True)


def repair(store: Store, faults: list[Fault], show: Show) -> None:
    """Fetch again what has faults. Raises ``DataError`` while other processes use it."""
    keeper = store.keeper
    keys = sorted({one_fault.key for one_fault in faults})
    names = sorted({one_fault.dataset for one_fault in faults})
    with keeper.books.change() as books:
        forget_dead(books, keeper.tokens.lives)
        for key in keys:
            other = first(
                books,
                "SELECT pid, dataset FROM lease WHERE token != ? AND dataset IN "
                "(SELECT dataset FROM object WHERE key = ?)",
                keeper.tokens.own, key,
            )  # fmt: skip
            if other is not None:
                raise DataError(
                    f"{other['dataset']!r} is in use, by process {other['pid']}; it can be repaired when that has "
                    "ended"
                )
        books.executemany(
            "UPDATE content SET going = ? WHERE key = ? AND going IS NULL",
            [(keeper.tokens.own, key) for key in keys],
        )
        keeper.unlink(books, keys)
    keeper.remove(Removal(keys, []))
    for name in names:
        store.use(name, show=show)
