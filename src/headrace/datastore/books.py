"""The store's books: what there is, what is on its way, who uses it. SQLite, for many processes at once.

Whoever changes something does it in one transaction that nobody else's can overlap. Processes may be killed at any
point, so whatever lies in the store's folder is in the books before it is there, and until after it is gone.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.datastore.errors import DataError

SCHEMA = 1
_PATIENCE = 60.0
"""Seconds that a transaction waits for those of others, each of which takes milliseconds."""
_TABLES = """
CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE dataset (
    name TEXT PRIMARY KEY,
    urls TEXT NOT NULL,      -- JSON; without secrets
    unpack INTEGER,          -- 1 or 0: all or none is unpacked; NULL: the store decides
    pinned INTEGER NOT NULL,
    added REAL NOT NULL,
    view TEXT                -- of its links; NULL: it has none now
) WITHOUT ROWID;
CREATE TABLE object (
    dataset TEXT NOT NULL REFERENCES dataset ON DELETE CASCADE,
    number INTEGER NOT NULL,
    url TEXT NOT NULL,
    secret INTEGER NOT NULL, -- the URL had something that is not kept
    name TEXT NOT NULL,      -- below the dataset's folder
    unpack INTEGER NOT NULL,
    size INTEGER NOT NULL,   -- of the object at its URL; -1: not known
    estimate INTEGER NOT NULL, -- what it takes here once it is whole, at least
    version BLOB NOT NULL,
    sha256 TEXT,             -- of the object at its URL; NULL: it was never fetched
    key TEXT,                -- of the content that came of it
    PRIMARY KEY (dataset, number)
) WITHOUT ROWID;
CREATE INDEX object_by_key ON object (key);
CREATE INDEX object_by_url ON object (url, version);
CREATE TABLE content (
    key TEXT PRIMARY KEY,
    kind TEXT NOT NULL,      -- "file" or "tree"
    bytes INTEGER NOT NULL,
    files INTEGER NOT NULL,
    manifest TEXT NOT NULL,  -- its digest
    cost REAL NOT NULL,      -- seconds to fetch and unpack it
    earlier REAL NOT NULL,
    last REAL NOT NULL,      -- see eviction.lrfu.History, in days
    going INTEGER            -- the token of whoever deletes it; NULL: it is here
) WITHOUT ROWID;
CREATE TABLE incoming (
    id TEXT PRIMARY KEY,
    dataset TEXT NOT NULL,
    reserved INTEGER NOT NULL, -- bytes that it may take
    token INTEGER NOT NULL,    -- whose it is
    pid INTEGER NOT NULL,
    since REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE lease (
    token INTEGER NOT NULL,
    dataset TEXT NOT NULL,
    pid INTEGER NOT NULL,
    since REAL NOT NULL,
    PRIMARY KEY (token, dataset)
) WITHOUT ROWID;
"""


class Books:
    """The database, as one process has it open. Threads share it; a child that was forked opens it anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._pid = -1
        self._connection: sqlite3.Connection | None = None
        self._depth = 0

    def close(self) -> None:
        """Close it."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """A transaction that may write: all of it happens or nothing, and no other at the same time."""
        with self._lock, _plain_errors(self._path):
            if self._depth:
                raise AssertionError("a transaction in a transaction")
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._depth -= 1

    @contextmanager
    def look(self) -> Iterator[sqlite3.Connection]:
        """A transaction that reads: all of it as of one moment."""
        with self._lock, _plain_errors(self._path):
            connection = self._open()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._pid == os.getpid():
            return self._connection
        connection = sqlite3.connect(
            self._path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
        )
        try:
            connection.row_factory = sqlite3.Row
            _write_ahead(connection)
            # Each transaction is on disk before what follows from it is done to files.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._pid = connection, os.getpid()
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if _version(connection) == SCHEMA:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            if not _version(connection):
                for statement in _TABLES.split(";\n"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {SCHEMA}")
            found = _version(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        if found != SCHEMA:
            raise DataError(
                f"{self._path} was written by another version of headrace (its books have version {found}, and this "
                f"one reads {SCHEMA}); use that version, or set HEADRACE_DATA to another folder"
            )


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Readers do not wait for writers. Where two set it at once, one is told to come again, whatever its patience."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)


@contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        hint = "its file system may be full, or not a local one"
        raise DataError(
            f"the books of the dataset store, {path}, cannot be used: {error} ({hint})"
        ) from error


def first(connection: sqlite3.Connection, query: str, *values: Any) -> sqlite3.Row | None:
    """The first row of an answer."""
    found: sqlite3.Row | None = connection.execute(query, values).fetchone()
    return found


def every(connection: sqlite3.Connection, query: str, *values: Any) -> list[sqlite3.Row]:
    """All rows of an answer."""
    return connection.execute(query, values).fetchall()
