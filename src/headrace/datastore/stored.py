"""A dataset of the store, for the rest of a process."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from headrace.core.sizes import show_size
from headrace.datastore.fetcher import Progress
from headrace.datastore.layout import usual_root
from headrace.datastore.store import Store

_stores: dict[tuple[int, Path], Store] = {}
_lock = threading.Lock()


def stored(name: str) -> Path:
    """The folder of a dataset that was added by ``headrace data add URL --name NAME``.

    As long as this process lives, or one that it forked, the dataset is not evicted. If it was evicted before, it is
    fetched again first. ``hr.folder(hr.stored("imagenet") / "train")`` is a source of it.
    """
    root = usual_root()
    with _lock:
        store = _stores.get((os.getpid(), root))
        if store is None:
            store = _stores[os.getpid(), root] = Store(root)
    return store.use(name, show=_Line(name))


class _Line:
    """Says on a terminal how far it is, and elsewhere that it has begun: a job that waits should say for what."""

    def __init__(self, name: str) -> None:
        self._name, self._said = name, -1

    def __call__(self, now: Progress) -> None:
        share = 100 * now.done // max(1, now.total)
        if share == self._said or (self._said >= 0 and not sys.stderr.isatty()):
            return
        self._said = share
        start, end = ("\r", "") if sys.stderr.isatty() else ("", "\n")
        text = f"headrace: dataset {self._name}: {now.doing}, {share} % of {show_size(now.total)}"
        print(f"{start}{text:<79}", end=end if now.done < now.total else "\n", file=sys.stderr, flush=True)
