"""A process that dies at its n-th step, for each n: a step is a change of the file system, or a statement to SQLite.

    python -m tests.datastore.dying ROOT URL EVERY

In ROOT, "old" is evicted so that "new" has room. After each death what is there has to be consistent, and the next
process has to be able to go on. Prints how many steps there were.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.datastore import Store, evict, overview
from headrace.datastore.books import Books
from tests.datastore.archives import read_tree, some_files
from tests.datastore.looks import check_still, disk

QUOTA = 640 << 10
PART = 64 << 10
_CHANGES = (
    "os.rename",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.symlink",
    "os.link",
    "os.chmod",
    "os.truncate",
)
DIED = 9


class Steps:
    """Counts steps, and dies before the n-th."""

    def __init__(self, root: Path) -> None:
        self.root, self.last, self.count = str(root), 0, 0
        sys.addaudithook(self._event)
        open_books = Books._open

        def traced(books: Books) -> sqlite3.Connection:
            connection = open_books(books)
            connection.set_trace_callback(lambda _: self.step())
            return connection

        Books._open = traced  # type: ignore[method-assign]

    def step(self) -> None:
        self.count += 1
        if self.count == self.last:
            os._exit(DIED)

    def _event(self, name: str, arguments: tuple[Any, ...]) -> None:
        writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if self.last and (name in _CHANGES or writes) and str(arguments[0]).startswith(self.root):
            self.step()


def run(steps: Steps, at: int, do: Callable[[], None]) -> int:
    """Do something in a process that dies at a step; its exit status."""
    pid = os.fork()
    if not pid:
        steps.last, steps.count = at, 0
        do()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def opened(root: Path) -> Store:
    return Store(root, quota=QUOTA, cooldown=0, part=PART)


def main(root: Path, url: str, every: int) -> None:
    steps = Steps(root / "now")
    with opened(root / "before") as store:
        store.add("old", [f"{url}old.tar"])

    def add() -> None:
        with opened(root / "now") as store:
            store.add("new", [f"{url}new.tar"])

    def leave() -> None:
        with opened(root / "now") as store:
            evict(store, "new", forget=True)

    at = deaths = 0
    for do in (add, leave):
        at = 1
        while True:
            shutil.rmtree(root / "now", ignore_errors=True)
            shutil.copytree(root / "before", root / "now", symlinks=True)
            if do is leave:
                add()
            status = run(steps, at, do)
            assert status in (0, DIED), status
            assert disk(root / "now") <= QUOTA
            deaths += status == DIED
            with opened(root / "now") as store:  # whatever is given out is whole, before anybody tidies up
                for one in overview(store).datasets:
                    if one.state == "here":
                        assert read_tree(store.use(one.name)) == expected(one.name)
            check_still(root / "now", QUOTA)
            add()
            with opened(root / "now") as store:
                assert read_tree(store.use("new")) == expected("new")
                assert [one.state for one in overview(store).datasets] == ["here", "evicted"]
            check_still(root / "now", QUOTA)
            if not status:
                break
            at += every
    print(f"{deaths} deaths")


def expected(name: str) -> dict[str, bytes]:
    return some_files(20, 8000, seed=1) if name == "old" else some_files(20, 9000, seed=2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
