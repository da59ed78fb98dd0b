"""Keeps files and books of the store in step, whoever is killed at whatever point.

A content's files are in the books before they lie in its folder for good, and until after they are gone; the same
with what is on its way. Whoever deletes or writes something has its name on it, and others touch it only when that
process is gone. What a killed process left is finished or taken back by the next one (``tidy``).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from headrace.core import environment
from headrace.core.sizes import parse_size
from headrace.datastore.books import Books, every, first
from headrace.datastore.errors import NoRoom, Stopped
from headrace.datastore.layout import Layout
from headrace.datastore.manifest import Record
from headrace.datastore.room import DAY, Removal, forget_dead, make_room, take_stock, taken
from headrace.datastore.tokens import Tokens
from headrace.datastore.tree import delete
from headrace.datastore.web import Stop
from headrace.eviction.lrfu import CostAwareLRFU, History

NOBODY = 0
"""The token of what belongs to no process. (Nobody holds it: tokens are random.)"""
_WEEK = 7 * DAY
_POLL = 0.05
_FEW = 64
"""Files that are put on disk one by one; more, and all of the file system's are."""


@dataclass(frozen=True)
class Ready:
    """A content that is whole, in a folder of its own."""

    folder: Path
    key: str
    kind: str
    records: list[Record]
    manifest: str
    bytes: int
    cost: float


class Keeper:
    """Files and books."""

    def __init__(self, layout: Layout, policy: CostAwareLRFU, quota: int | str | None = None) -> None:
        layout.make()
        self.layout, self.policy = layout, policy
        self.books, self.tokens = Books(layout.books), Tokens(layout.tokens)
        self._quota = quota

    def close(self) -> None:
        """Let go of everything."""
        with contextlib.suppress(Exception), self.books.change() as books:
            books.execute("DELETE FROM lease WHERE token = ?", (self.tokens.own,))
            books.execute("UPDATE incoming SET token = ? WHERE token = ?", (NOBODY, self.tokens.own))
        self.books.close()
        self.tokens.close()

    # -- room --------------------------------------------------------------------------------------------------

    def quota(self, books: sqlite3.Connection) -> int:
        """Bytes that the store may take: as it was opened, the environment, the books, or a share of the disk."""
        said: int | str | None = self._quota or environment.data_quota() or None
        if said is None:
            row = first(books, "SELECT value FROM setting WHERE name = 'quota'")
            said = row["value"] if row else None
        if said is None:
            return self.layout.usual_quota(taken(books))
        found = os.statvfs(self.layout.root)
        return parse_size(said, total=found.f_blocks * found.f_frsize, option="quota")

    def reserve(self, books: sqlite3.Connection, need: int, what: str, mine: Iterable[str] = ()) -> Removal:
        """In a transaction: have room for ``need`` bytes more. ``mine``: what was left by others and is taken over,
        so that it counts no more. What is returned has to be deleted (``remove``) before anything is written."""
        now = time.time()
        usage = take_stock(books, self.tokens.lives, now)
        for ident in mine:
            usage.left.pop(ident, None)
        quota, free = self.quota(books), self.layout.free()
        removal = make_room(books, usage, need, quota, free, self.policy, now, self.tokens.own, what)
        self.unlink(books, removal.contents)
        return Removal(removal.contents + self._strays(books), removal.incoming)

    def _strays(self, books: sqlite3.Connection) -> list[str]:
        """In a transaction: contents whose process was killed before they were in the books. They are, as going."""
        known = {row["key"] for row in every(books, "SELECT key FROM content")}
        found = sorted(_names(self.layout.content("")) - known)
        rows = [(key, self.tokens.own) for key in found]
        books.executemany("INSERT INTO content VALUES (?, '', 0, 0, '', 0, 0, 0, ?)", rows)
        return found

    def grow(self, ident: str, least: int, much: int, what: str, stop: Stop) -> int:
        """More room for something on its way: ``much``, or at least ``least`` bytes; how many."""
        for more in (much, least):
            try:
                with self.books.change() as books:
                    removal = self.reserve(books, more, what)
                    books.execute("UPDATE incoming SET reserved = reserved + ? WHERE id = ?", (more, ident))
                self.remove(removal)
                self.await_room(stop)
                return more
            except NoRoom:
                if more == least:
                    raise
        raise AssertionError

    def await_room(self, stop: Stop) -> None:
        """Until all that has to go for what comes has gone, whoever deletes it."""
        while True:
            with self.books.look() as books:
                if taken(books) <= self.quota(books) or not self._others_delete(books):
                    return
            self.tidy()
            if stop.wait(_POLL):
                raise Stopped("ended")

    def _others_delete(self, books: sqlite3.Connection) -> bool:
        return first(books, "SELECT key FROM content WHERE going IS NOT NULL") is not None

    # -- what comes and goes -----------------------------------------------------------------------------------

    def commit(self, books: sqlite3.Connection, ready: Ready, ident: str, history: History) -> bool:
        """In a transaction: put a content in its place. False: somebody is just deleting what was there."""
        row = first(books, "SELECT going FROM content WHERE key = ?", ready.key)
        if row is not None:
            return (
                row["going"] is None
            )  # (it came from elsewhere meanwhile, or was here: that one is as good)
        place = self.layout.content(ready.key)
        if os.path.lexists(place):  # put there by a process that was killed before it was in the books
            os.rename(place, self.layout.incoming(ident) / "left")
        os.rename(ready.folder, place)
        sync_folder(place.parent)
        books.execute(
            "INSERT INTO content VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)",
            (ready.key, ready.kind, ready.bytes, len(ready.records), ready.manifest, ready.cost, history.earlier,
             history.last),
        )  # fmt: skip
        # What is left of it on its way is deleted afterwards, and counts until then.
        books.execute(
            "UPDATE incoming SET reserved = MAX(0, reserved - ?) WHERE id = ?", (ready.bytes, ident)
        )
        return True

    def remove(self, removal: Removal) -> None:
        """Delete what is in the books as going, by this process."""
        for key in removal.contents:
            delete(self.layout.content(key))
        for ident in removal.incoming:
            delete(self.layout.incoming(ident))
        if not removal.contents and not removal.incoming:
            return
        own = self.tokens.own
        with self.books.change() as books:
            books.executemany(
                "DELETE FROM content WHERE key = ? AND going = ?", [(key, own) for key in removal.contents]
            )
            books.executemany(
                "DELETE FROM incoming WHERE id = ? AND token = ?",
                [(ident, own) for ident in removal.incoming],
            )

    def leave(self, ident: str) -> None:
        """Let go of something on its way, which others may go on with. It counts as what it takes."""
        folder = self.layout.incoming(ident)
        delete(folder / "ready")
        size = _measured(folder)
        with self.books.change() as books:
            books.execute(
                "UPDATE incoming SET token = ?, reserved = ? WHERE id = ? AND token = ?",
                (NOBODY, size, ident, self.tokens.own),
            )

    def drop(self, ident: str) -> None:
        """Delete something on its way."""
        self.remove(Removal([], [ident]))

    def tidy(self) -> None:
        """Finish what killed processes left in the middle, and delete what nobody will go on with."""
        with self.books.change() as books:
            forget_dead(books, self.tokens.lives)
            usage = take_stock(books, self.tokens.lives, time.time())
            contents, own = list(usage.orphans), self.tokens.own
            contents += self._strays(books)
            books.executemany("UPDATE content SET going = ? WHERE key = ?", [(own, key) for key in contents])
            rows = every(books, "SELECT id, since, token FROM incoming")
            dead = [row for row in rows if row["id"] in usage.left]
            old = [row["id"] for row in dead if row["since"] < time.time() - _WEEK]
            cut = [row["id"] for row in dead if row["id"] not in old and row["token"] != NOBODY]
            books.executemany(
                "UPDATE incoming SET token = ? WHERE id = ?", [(own, ident) for ident in old + cut]
            )
            for name in _names(self.layout.incoming("")) - {row["id"] for row in rows}:
                delete(self.layout.incoming(name))
            self.unlink(books, contents)
            self._tidy_views(books)
        self.remove(Removal(contents, old))
        for ident in cut:  # what it may take is not known any more, but what it takes
            self.leave(ident)

    def unlink(self, books: sqlite3.Connection, keys: list[str]) -> None:
        """In a transaction: datasets that lose something have no folder from now on."""
        for key in keys:
            for row in every(books, "SELECT DISTINCT dataset FROM object WHERE key = ?", key):
                self.layout.dataset(row["dataset"]).unlink(missing_ok=True)
                books.execute("UPDATE dataset SET view = NULL WHERE name = ?", (row["dataset"],))

    def _tidy_views(self, books: sqlite3.Connection) -> None:
        rows = every(books, "SELECT name, view FROM dataset")
        for name in _names(self.layout.view("")) - {row["view"] for row in rows}:
            maker = name.rpartition(".")[2]
            if not (name.startswith(".") and maker.isdigit() and self.tokens.lives(int(maker))):
                delete(self.layout.view(name))
        for name in _names(self.layout.dataset("")) - {row["name"] for row in rows}:
            self.layout.dataset(name).unlink(missing_ok=True)


def _names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def _measured(folder: Path) -> int:
    """What a folder takes, with all that is in it."""
    total = 4096
    for at, folders, names in os.walk(folder):
        total += 4096 * len(folders)
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                found = os.lstat(os.path.join(at, name))
                total += max(found.st_blocks * 512, -(-found.st_size // 4096) * 4096)
    return total


def sync_folder(folder: Path) -> None:
    """Have the folder's entries on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(folder: Path, records: list[Record]) -> None:
    """Have a content's files on disk."""
    if len(records) > _FEW:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            sync = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
            if sync is None or sync(descriptor):
                os.sync()
        finally:
            os.close(descriptor)
        return
    folders = {folder}
    for record in records:
        path = folder / record.path
        folders |= {parent for parent in path.parents if parent.is_relative_to(folder)}
        if not record.link:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    for one_folder in folders:
        sync_folder(one_folder)
