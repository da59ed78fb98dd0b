"""What holds of a store at any time, and when nobody is at it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from headrace.datastore import Store, overview, verify
from headrace.datastore.books import every
from headrace.datastore.keeper import NOBODY

LOOSE = 64 << 10
"""What the folders themselves, and the books, may take."""


def disk(root: Path) -> int:
    """What contents take on disk, and what is on its way; while others write."""
    total = 0
    for part in ("content", "incoming"):
        for at, _, names in os.walk(root / part):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    total += os.lstat(os.path.join(at, name)).st_blocks * 512
    return total


def check_still(root: Path, quota: int | None = None) -> None:
    """Nobody is at it: files and books say the same, nothing is left over, nothing is damaged."""
    with Store(root, quota=quota) as store:
        store.keeper.tidy()
        with store.keeper.books.look() as books:
            contents = {row["key"]: row for row in every(books, "SELECT * FROM content")}
            incoming = {row["id"]: row for row in every(books, "SELECT * FROM incoming")}
            views = {row["view"] for row in every(books, "SELECT view FROM dataset")}
            names = {row["name"] for row in every(books, "SELECT name FROM dataset")}
            leases = every(books, "SELECT * FROM lease")
        assert all(row["going"] is None for row in contents.values())
        assert not leases
        assert set(os.listdir(root / "content")) == contents.keys()
        assert set(os.listdir(root / "incoming")) <= incoming.keys()
        assert not any(store.keeper.tokens.lives(row["token"]) for row in incoming.values())
        assert set(os.listdir(root / "views")) <= views
        assert set(os.listdir(root / "datasets")) <= names
        assert set(os.listdir(root)) - {"store.db-wal", "store.db-shm"} == {
            "content", "incoming", "views", "datasets", "store.db", "tokens",
        }  # fmt: skip
        taken = sum(row["bytes"] for row in contents.values())
        taken += sum(row["reserved"] for row in incoming.values())
        assert disk(root) <= taken
        if quota is not None:
            assert taken <= quota
        for dataset in overview(store).datasets:
            assert not verify(store, dataset.name, lambda done, total: None)


def alive(root: Path) -> bool:
    """Whether anything is under way."""
    with Store(root) as store, store.keeper.books.look() as books:
        return any(row["token"] != NOBODY for row in every(books, "SELECT token FROM incoming"))
