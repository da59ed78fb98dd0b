"""The dataset store: datasets fetched once, kept on disk under a quota, shared by all jobs of a user."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.core.errors import OptionError
from headrace.datastore.books import every, first
from headrace.datastore.errors import BadArchive, DataError, NoRoom, NoSuchDataset, UnsafeArchive
from headrace.datastore.fetcher import Fetcher, Progress, Show, Task
from headrace.datastore.keeper import Keeper
from headrace.datastore.layout import Layout, usual_root
from headrace.datastore.remote import PART, Remote, find
from headrace.datastore.room import DAY, Removal, forget_dead
from headrace.datastore.urls import good_name, normal_url, public_url
from headrace.datastore.views import make_view, view_exists
from headrace.datastore.web import Stop
from headrace.eviction.lrfu import CostAwareLRFU, History

COOLDOWN = 600.0
"""Seconds after its last use for which nothing is evicted: who has just ended may begin again."""
_POLL = 0.2


class _Vanished(Exception):
    """A dataset was there, and was removed before it could be had."""


def _quiet(_: Progress) -> None:
    pass


class Store:
    """The store, as one process has it open. Leases that it took are held until it is closed."""

    def __init__(
        self, root: str | os.PathLike[str] | None = None, *, quota: int | str | None = None,
        cooldown: float = COOLDOWN, part: int = PART,
    ) -> None:  # fmt: skip
        """``quota``: what the store may take from now on, as far as this process is concerned."""
        # Times are in days: with a step of 0.25, a use counts half after four days.
        policy = CostAwareLRFU(together=cooldown / DAY, cooldown=cooldown / DAY)
        self.layout = Layout(Path(root).absolute() if root is not None else usual_root())
        self.keeper = Keeper(self.layout, policy, quota)
        self._part = part

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of all leases."""
        self.keeper.close()

    # -- having datasets ---------------------------------------------------------------------------------------

    def add(
        self, name: str, urls: Sequence[str], *, unpack: bool | None = None, pin: bool = False, show: Show = _quiet
    ) -> Path:  # fmt: skip
        """Fetch a dataset and give it a name; its folder. One that is there is not fetched again."""
        if not good_name(name):
            raise OptionError(f"name={name!r}: a name has letters, digits, '.', '_', '+' and '-' alone")
        if not urls:
            raise OptionError("there is nothing to add: name a URL")
        live = {public_url(normal_url(url)): normal_url(url) for url in urls}
        while True:
            found = [] if self._known(name, list(live), unpack) else find(urls, unpack)
            try:
                return self._have(name, show, live, found, (list(live), unpack, pin))
            except _Vanished:
                continue

    def use(self, name: str, *, show: Show = _quiet) -> Path:
        """A dataset's folder, with a lease on it. What was evicted is fetched again."""
        return self._have(name, show)

    def _known(self, name: str, urls: list[str], unpack: bool | None) -> bool:
        with self.keeper.books.look() as books:
            row = first(books, "SELECT urls, unpack FROM dataset WHERE name = ?", name)
        if row is None:
            return False
        if json.loads(row["urls"]) != urls or (unpack is not None and unpack != row["unpack"]):
            raise DataError(
                f"there is a dataset {name!r} already, of {', '.join(json.loads(row['urls']))}; choose another name, "
                f"or: headrace data remove {name}"
            )
        return True

    def _have(
        self, name: str, show: Show, live: Mapping[str, str] | None = None, found: Sequence[Remote] = (),
        new: tuple[list[str], bool | None, bool] | None = None,
    ) -> Path:  # fmt: skip
        """``new``: what to write down of a dataset that is not there yet."""
        keeper, fresh = self.keeper, bool(found)
        fetcher, made = Fetcher(keeper, self._part), False
        keeper.tidy()
        while True:
            with keeper.books.change() as books:
                forget_dead(books, keeper.tokens.lives)
                if new is not None:
                    made = self._write_down(books, name, *new, found) or made
                tasks, others, removal = self._admit(books, name, live or {}, fresh)
                done = not tasks and not others
                linked = done and view_exists(keeper, books, name)
            keeper.remove(removal)
            if done:
                return self.layout.dataset(name) if linked else make_view(keeper, name)
            new, fresh = None, fresh and bool(tasks)
            if not tasks:
                fetcher.progress.doing = f"process {others[0]} fetches it"
                show(fetcher.progress)
                time.sleep(_POLL)
                continue
            try:
                keeper.await_room(Stop())
                fetcher.run(tasks, show)
            except BaseException as error:
                for task in tasks:
                    keeper.leave(task.ident)
                with keeper.books.change() as books:
                    books.execute(
                        "DELETE FROM lease WHERE token = ? AND dataset = ?", (keeper.tokens.own, name)
                    )
                    # What cannot be had is not there, unless others are still trying.
                    if made and isinstance(error, BadArchive | UnsafeArchive | NoRoom):
                        books.execute(
                            "DELETE FROM dataset WHERE name = ? AND name NOT IN (SELECT dataset FROM lease)",
                            (name,),
                        )
                raise

    def _write_down(
        self, books: sqlite3.Connection, name: str, urls: list[str], unpack: bool | None, pin: bool,
        found: Sequence[Remote],
    ) -> bool:  # fmt: skip
        """In a transaction: a new dataset. False: it was there."""
        if first(books, "SELECT name FROM dataset WHERE name = ?", name) is not None:
            if pin:
                books.execute("UPDATE dataset SET pinned = 1 WHERE name = ?", (name,))
            return False
        if not found:
            raise _Vanished
        books.execute(
            "INSERT INTO dataset VALUES (?, ?, ?, ?, ?, NULL)",
            (name, json.dumps(urls), unpack, int(pin), time.time()),
        )
        books.executemany(
            "INSERT INTO object VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
            [
                (name, number, public_url(one.url), one.url != public_url(one.url), one.name, one.unpack, one.size,
                 one.estimate, one.version)
                for number, one in enumerate(found)
            ],
        )  # fmt: skip
        return True

    def _admit(
        self, books: sqlite3.Connection, name: str, live: Mapping[str, str], fresh: bool
    ) -> tuple[list[Task], list[int], Removal]:
        """In a transaction: take a lease, and room for what is missing. Tasks for this process; processes that
        fetch the rest. Where nothing is missing, this is a use."""
        keeper = self.keeper
        rows = every(books, "SELECT * FROM object WHERE dataset = ? ORDER BY number", name)
        if not rows:
            raise NoSuchDataset(name, [row["name"] for row in every(books, "SELECT name FROM dataset")])
        own = keeper.tokens.own
        books.execute(
            "INSERT OR IGNORE INTO lease VALUES (?, ?, ?, ?)", (own, name, os.getpid(), time.time())
        )
        tasks: list[Task] = []
        others: list[int] = []
        keys: set[str] = set()
        mine: set[str] = set()
        for row in rows:
            key = self._key_here(books, row)
            if key is not None:
                keys.add(key)
                continue
            ident = hashlib.sha256(
                f"{row['url']}\0{row['unpack']}".encode("utf-8", "surrogateescape")
            ).hexdigest()
            coming = first(books, "SELECT token, pid FROM incoming WHERE id = ?", ident)
            if coming is not None and keeper.tokens.lives(coming["token"]):
                others.append(coming["pid"])
                continue
            if ident in mine:  # the same URL twice: once it is here, it is
                others.append(os.getpid())
                continue
            mine.add(ident)
            tasks.append(self._task(row, ident, live, fresh))
        if not tasks:
            if not others:
                self._count_use(books, keys)
            return [], others, Removal([], [])
        need = sum(task.reserved for task in tasks)
        removal = keeper.reserve(books, need, f"{name!r}", mine)
        books.executemany(
            "INSERT OR REPLACE INTO incoming VALUES (?, ?, ?, ?, ?, ?)",
            [(task.ident, name, task.reserved, own, os.getpid(), time.time()) for task in tasks],
        )
        return tasks, others, removal

    def _task(self, row: sqlite3.Row, ident: str, live: Mapping[str, str], fresh: bool) -> Task:
        url = live.get(row["url"], row["url"])
        if row["secret"] and row["url"] not in live:
            raise DataError(
                f"{row['dataset']!r} was added with a signed URL or a password, which is not kept. Add it once more: "
                f"headrace data add URL --name {row['dataset']}"
            )
        remote = Remote(
            url, row["name"], row["size"], bytes(row["version"]), bool(row["unpack"]), row["estimate"]
        )
        return Task(row["dataset"], row["number"], ident, remote, remote.peak, row["sha256"], fresh)

    def _key_here(self, books: sqlite3.Connection, row: sqlite3.Row) -> str | None:
        """In a transaction: the key of an object's content, if that is here, by whichever dataset it came."""
        key = row["key"]
        if key is None and row["version"]:
            twin = first(
                books,
                "SELECT object.key, sha256 FROM object JOIN content USING (key) WHERE url = ? AND version = ? "
                "AND unpack = ? AND size = ? AND going IS NULL AND NOT secret",
                row["url"], row["version"], row["unpack"], row["size"],
            )  # fmt: skip
            if twin is not None and not row["secret"]:
                key = twin["key"]
                books.execute(
                    "UPDATE object SET key = ?, sha256 = ? WHERE dataset = ? AND number = ?",
                    (key, twin["sha256"], row["dataset"], row["number"]),
                )
        if (
            key is None
            or first(books, "SELECT key FROM content WHERE key = ? AND going IS NULL", key) is None
        ):
            return None
        if not self.layout.content(key).is_dir():  # somebody has deleted it by hand
            books.execute("DELETE FROM content WHERE key = ?", (key,))
            return None
        return str(key)

    def _count_use(self, books: sqlite3.Connection, keys: set[str]) -> None:
        now, policy = time.time() / DAY, self.keeper.policy
        for key in keys:
            row = first(books, "SELECT earlier, last FROM content WHERE key = ?", key)
            assert row is not None
            history = policy.use(History(row["earlier"], row["last"]), now)
            books.execute(
                "UPDATE content SET earlier = ?, last = ? WHERE key = ?", (history.earlier, history.last, key)
            )
