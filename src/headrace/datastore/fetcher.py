"""Fetches objects into the store: several at once, each downloaded, unpacked and put in its place."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.datastore.books import first
from headrace.datastore.download import DATA, Download
from headrace.datastore.errors import BadArchive, NoRoom, SourceChanged, Stopped, UnsafeArchive
from headrace.datastore.formats import read_head, sniff, unpacks
from headrace.datastore.keeper import Keeper, Ready, sync_all
from headrace.datastore.layout import on_disk
from headrace.datastore.manifest import Record, write_manifest
from headrace.datastore.remote import OVERHEAD, PART, Remote, describe, failed, storage_for
from headrace.datastore.room import DAY
from headrace.datastore.tree import delete
from headrace.datastore.unpack import OBJECT, unpack
from headrace.datastore.urls import public_url
from headrace.datastore.web import Stop
from headrace.eviction.lrfu import History

OBJECTS, READS = 4, 16
"""Objects under way at once, and reads of all of them together."""
_CHUNK = 64 << 20
"""Room is asked for by so much, where it is not known how much comes out of an archive."""
_AGAIN = 3
"""Times that an object which changes while it is read is begun anew."""


@dataclass(frozen=True)
class Task:
    """One object of a dataset, to be fetched by this process."""

    dataset: str
    number: int
    ident: str
    """Of what is on its way."""
    remote: Remote
    reserved: int
    sha256: str | None
    """What it was when it was fetched before."""
    fresh: bool
    """It was looked at just now."""


@dataclass
class Progress:
    """How far it is. Bytes count as downloaded; what is unpacked does not count."""

    total: int = 0
    done: int = 0
    resumed: int = 0
    doing: str = ""


Show = Callable[[Progress], None]


class Reservation:
    """Meters what is written of one object: more room is asked for when it is needed."""

    def __init__(self, keeper: Keeper, task: Task, stop: Stop) -> None:
        self._keeper, self._task, self._stop = keeper, task, stop
        remote = task.remote
        self._left = task.reserved - (
            remote.peak - (remote.estimate if remote.unpack or remote.size < 0 else 0)
        )
        self._lock = threading.Lock()
        self.written = 0

    def take(self, count: int) -> None:
        """See ``Meter``."""
        if self._stop.is_set():
            raise Stopped("ended")
        with self._lock:
            self.written += count
            self._left -= count
            if self._left < 0:
                least, what = -self._left, f"{self._task.dataset!r}, while it is unpacked,"
                self._left += self._keeper.grow(self._task.ident, least, max(_CHUNK, least), what, self._stop)


class Fetcher:
    """Fetches tasks for which there is room."""

    def __init__(self, keeper: Keeper, part: int = PART) -> None:
        self._keeper, self._part = keeper, part
        self._stop: Stop
        self._lock = threading.Lock()
        self.progress = Progress()

    def run(self, tasks: Sequence[Task], show: Show) -> None:
        """Fetch all of them. The first that fails ends the others, which can be gone on with later. (There may be
        more to fetch after it: what another process was fetching, and did not get to the end of.)"""
        self._stop = Stop()
        self.progress.total += sum(max(0, task.remote.size) for task in tasks)
        self._reads = ThreadPoolExecutor(READS, "headrace-read")
        pool = ThreadPoolExecutor(OBJECTS, "headrace-fetch")
        waiting: set[Future[None]] = set()
        try:
            waiting = {pool.submit(self._fetch, task) for task in tasks}
            while waiting:
                show(self.progress)
                done, waiting = wait(waiting, 0.1, FIRST_COMPLETED)
                for one_done in done:
                    one_done.result()
            show(self.progress)
        finally:
            self._stop.set()
            for one_left in waiting:
                one_left.cancel()
            pool.shutdown(wait=True)
            self._reads.shutdown(wait=True, cancel_futures=True)

    def _fetch(self, task: Task) -> None:
        keeper = self._keeper
        try:
            self._once(task)
        except (BadArchive, UnsafeArchive, NoRoom):
            keeper.drop(task.ident)
            raise
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                keeper.leave(task.ident)
                raise
            keeper.drop(task.ident)
            raise NoRoom(
                f"{task.dataset!r} could not be written: {error.strerror} in {keeper.layout.root}; free some of that "
                "disk, or set HEADRACE_DATA to a folder on another"
            ) from error
        except BaseException:
            keeper.leave(task.ident)
            raise

    def _once(self, task: Task) -> None:
        keeper, stop = self._keeper, self._stop
        folder = keeper.layout.incoming(task.ident)
        folder.mkdir(exist_ok=True)
        delete(folder / "ready")
        delete(folder / "left")
        for again in range(_AGAIN):
            if not task.fresh or again:
                task = self._look(task)
            remote, come = task.remote, [0]
            meter = Reservation(keeper, task, stop)
            self._doing(f"fetching {remote.name}")

            def came(count: int, come: list[int] = come) -> None:
                with self._lock:
                    come[0] += count
                    self.progress.done += count

            load = Download(remote, folder, self._reads, meter, came, stop, self._part)
            begun = time.monotonic()
            try:
                sha256 = load.run()
                break
            except SourceChanged:
                if task.sha256 is not None or again == _AGAIN - 1:
                    raise
                came(-come[0])
        if stop.is_set():
            raise Stopped("ended")
        seconds = time.monotonic() - begun
        if 0 < load.fetched < remote.size:  # the rest came earlier, and took its time, too
            seconds *= remote.size / load.fetched
        if task.sha256 not in (None, sha256):
            raise _changed(task)
        self._place(task, folder, sha256, meter, seconds)

    def _look(self, task: Task) -> Task:
        """The object as it is now: what was fetched before has to have its size, at least."""
        entry = describe(storage_for(task.remote.url, self._stop), task.remote.url, self._stop)
        if isinstance(entry, BaseException):
            raise failed(task.remote.url, entry) from entry
        if task.sha256 is not None and entry.size != task.remote.size:
            raise _changed(task)
        more = on_disk(max(0, entry.size)) - on_disk(max(0, task.remote.size))
        if more > 0:
            self._keeper.grow(task.ident, more, more, repr(task.dataset), self._stop)
        estimate = task.remote.estimate if task.remote.unpack else on_disk(max(0, entry.size))
        remote = replace(task.remote, size=entry.size, version=entry.version, estimate=estimate)
        return replace(task, remote=remote, reserved=task.reserved + max(0, more))

    def _place(self, task: Task, folder: Path, sha256: str, meter: Reservation, seconds: float) -> None:
        keeper, remote = self._keeper, task.remote
        data, ready = folder / DATA, folder / "ready"
        unpacked = remote.unpack and unpacks(remote.name, sniff(read_head(data)))
        key = f"{sha256}.{'out' if unpacked else 'raw'}"
        begun, before = time.monotonic(), meter.written if unpacked else 0
        if not self._commit(task, key, sha256, None):
            ready.mkdir()
            records = self._unpack(remote, data, ready, meter) if unpacked else [_keep(data, ready, sha256)]
            digest = write_manifest(ready, records)
            sync_all(ready, records)
            size = OVERHEAD
            size += meter.written - before if unpacked or remote.size < 0 else on_disk(remote.size)
            kind = "file" if [record.path for record in records] == [OBJECT] else "tree"
            cost = seconds + time.monotonic() - begun
            whole = Ready(ready, key, kind, records, digest, size, cost)
            while not self._commit(task, key, sha256, whole):
                if self._stop.wait(0.05):
                    raise Stopped("ended")
                keeper.tidy()
        keeper.drop(task.ident)

    def _unpack(self, remote: Remote, data: Path, ready: Path, meter: Reservation) -> list[Record]:
        self._doing(f"unpacking {remote.name}")
        records = unpack(data, ready, meter, public_url(remote.url))
        meter.take(on_disk(sum(100 + 4 * len(record.path + record.link) for record in records)))
        return records

    def _commit(self, task: Task, key: str, sha256: str, whole: Ready | None) -> bool:
        """Into the books. None: what is here already, from elsewhere. False: it is not, or is just being deleted."""
        keeper, remote = self._keeper, task.remote
        with keeper.books.change() as books:
            if whole is None:
                if first(books, "SELECT key FROM content WHERE key = ? AND going IS NULL", key) is None:
                    return False
            elif not keeper.commit(books, whole, task.ident, History(last=time.time() / DAY)):
                return False
            books.execute(
                "UPDATE object SET sha256 = ?, key = ?, size = ?, version = ? WHERE dataset = ? AND number = ?",
                (sha256, key, remote.size, remote.version, task.dataset, task.number),
            )
        return True

    def _doing(self, doing: str) -> None:
        with self._lock:
            self.progress.doing = doing


def _keep(data: Path, ready: Path, sha256: str) -> Record:
    """An object that stays as it is."""
    os.chmod(data, 0o444)
    os.rename(data, ready / OBJECT)
    return Record(OBJECT, (ready / OBJECT).stat().st_size, sha256)


def _changed(task: Task) -> SourceChanged:
    url, name = public_url(task.remote.url), task.dataset
    return SourceChanged(
        f"{url} is not what it was when {name!r} was added. To have what is there now: headrace data remove {name}; "
        f"headrace data add {url} --name {name}"
    )
