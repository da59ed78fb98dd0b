"""Buckets as a storage: objects, and parts of objects, many at once."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from headrace.core.errors import NotNow
from headrace.core.sizes import show_size
from headrace.sources.buckets.again import unavailable
from headrace.sources.buckets.errors import changed, ends_early, timed_out, translate
from headrace.sources.buckets.library import library
from headrace.sources.buckets.opened import Opened, opened
from headrace.sources.buckets.options import Options
from headrace.sources.buckets.ranges import Request, together
from headrace.sources.buckets.traffic import Turn
from headrace.sources.buckets.urls import Url, join, parse
from headrace.sources.entry import Entry
from headrace.sources.local import MAX_BYTES
from headrace.sources.location import Location

_MD5 = re.compile("[0-9a-f]{32}")
_AT_ONCE = 1000


def version_of(meta: Mapping[str, Any]) -> bytes:
    """What tells an object from the one that had its name before, in 32 hexadecimal digits: its ETag if that is what
    it is made of, else a digest of it; where there is none, of size and time of change."""
    # (in listings of some kinds of storage tags have no quotes, and times have parts of a second)
    tag = (meta["e_tag"] or "").removeprefix("W/").strip('"')
    if _MD5.fullmatch(tag):
        return tag.encode()
    what = tag or f"{meta['size']} {int(meta['last_modified'].timestamp())}"
    return hashlib.blake2b(what.encode(), digest_size=16).hexdigest().encode()


class BucketStorage:
    """Objects of buckets. Whoever holds it may be pickled, and forked: buckets are opened where they are used."""

    def __init__(
        self, max_bytes: int = MAX_BYTES, options: Options | Mapping[str, Any] | None = None
    ) -> None:
        self._max_bytes = max_bytes
        self._options = options if isinstance(options, Options) else Options(options)

    def __repr__(self) -> str:
        return f"BucketStorage({self._options!r})"

    def bucket(self, root: str) -> Opened:
        """A bucket as this process has it open."""
        return opened(root, self._options)

    @property
    def options(self) -> Options:
        """What buckets are opened with."""
        return self._options

    # -- reading ----------------------------------------------------------------------------------------------

    def read(self, locations: Sequence[Location]) -> list[bytes | BaseException]:
        """See ``LocationReader``, but for the version: an object of another one than the location's is an error.

        All of them are asked for at once, as far as the bucket's traffic allows; parts of one object that lie near
        each other in one request.
        """
        out: list[bytes | BaseException] = [b""] * len(locations)
        requests = together(locations)

        def one(number: int, turn: Turn | None) -> None:
            request = requests[number]
            try:
                self._get(request, locations, out, turn)
            except Exception as error:
                for row in request.rows:
                    out[row] = error

        self._each(len(requests), lambda number: requests[number].what, one)
        return out

    def _each(self, count: int, what: Callable[[int], bytes], do: Callable[[int, Turn | None], None]) -> None:
        """Make several requests of one call, at the same time."""
        if count <= 1:
            if count:
                do(0, None)
            return
        try:
            traffic = self.bucket(parse(what(0)).root).traffic
        except Exception:  # (what is wrong is said of each)
            for number in range(count):
                do(number, None)
            return
        traffic.each(count, do)

    def _get(
        self,
        request: Request,
        locations: Sequence[Location],
        out: list[bytes | BaseException],
        turn: Turn | None,
    ) -> None:
        if request.stop == request.start:
            return  # (no byte is asked for)
        url = parse(request.what)
        name = os.fsdecode(request.what)
        bucket = self.bucket(url.root)
        options: dict[str, Any] | None = None
        if request.stop is not None:
            options = {"range": (request.start, request.stop)}
        elif request.start:
            options = {"range": {"offset": request.start}}

        def fetch(store: Any) -> tuple[Any, int]:
            answer = library().get(store, url.key, options=options)
            meta = answer.meta
            if request.version and version_of(meta) != request.version:
                raise changed(name)
            size = meta["size"] if request.whole else answer.range[1] - answer.range[0]
            longest = max((locations[row].length or size for row in request.rows), default=size)
            if longest > self._max_bytes:
                raise self._too_large(name, longest, request.whole)
            return answer.bytes(), size

        data, size = self._ask(bucket, name, (request.what, request.start), turn, fetch)
        if len(data) != size:
            raise NotNow(f"{name}: the connection was lost", paced=True)
        if request.stop is None:
            whole = bytes(data)
            for row in request.rows:
                out[row] = whole
            return
        view = memoryview(data)
        for row in request.rows:
            one = locations[row]
            begin, length = one.start - request.start, one.length or 0
            part = bytes(view[begin : begin + length])
            out[row] = part if len(part) == length else ends_early(name, one.start + length)

    def _too_large(self, name: str, size: int, whole: bool) -> OSError:
        if not whole:
            return OSError(errno.EFBIG, f"a part of {show_size(size)} is too large to be read", name)
        large = (
            f"it has {show_size(size)}, and at most {show_size(self._max_bytes)} are read; if it is meant to "
        )
        return OSError(errno.EFBIG, large + "be so large, pass max_bytes= to files() or folder()", name)

    def _ask(
        self, bucket: Opened, name: str, key: object, turn: Turn | None, call: Callable[[Any], Any]
    ) -> Any:
        """Make one request in its turn. What the library says goes no further than this."""
        step = bucket.wait(key)

        def make() -> Any:
            try:
                return call(bucket.store(step))
            except BaseException as error:
                if timed_out(error):
                    bucket.late(key, step)
                meant = translate(error, name, bucket.kind)
            raise meant

        return bucket.traffic.request(turn or bucket.traffic.call(1), make)

    # -- looking ----------------------------------------------------------------------------------------------

    def describe(self, names: Sequence[bytes]) -> list[Entry | BaseException]:
        """See ``Storage``."""
        out: list[Any] = [None] * len(names)

        def one(number: int, turn: Turn | None) -> None:
            try:
                url = parse(names[number])
                name = str(url)
                meta = self._ask(
                    self.bucket(url.root), name, None, turn, lambda store: library().head(store, url.key)
                )
                out[number] = Entry(os.fsencode(name), meta["size"], version_of(meta))
            except Exception as error:
                out[number] = error

        self._each(len(names), lambda number: names[number], one)
        return out

    def below(self, prefix: bytes) -> Iterator[list[Entry]]:
        """See ``Storage``."""
        url = parse(prefix)
        found: dict[str, Entry] = {}
        for metas in self.pages(url):
            for meta in metas:
                name = join(url.root, meta["path"])
                found[name] = Entry(os.fsencode(name), meta["size"], version_of(meta))
        names = sorted(found, key=os.fsencode)
        for start in range(0, len(names), _AT_ONCE):
            yield [found[name] for name in names[start : start + _AT_ONCE]]

    def pages(
        self, url: Url, after: str = "", stop: threading.Event | None = None
    ) -> Generator[list[Any], None, None]:
        """What the library says of all objects below a prefix, page by page, in the bucket's order."""
        bucket = self.bucket(url.root)
        try:
            pages = library().list(
                bucket.patient_store(), prefix=url.key or None, offset=after or None, chunk_size=_AT_ONCE
            )
            for page in pages:
                # (not all storage looks at where to begin)
                yield [meta for meta in page if meta["path"] > after] if after else page
                if stop is not None and stop.is_set():
                    return
            return
        except GeneratorExit:
            raise
        except BaseException as error:
            meant = translate(error, str(url), bucket.kind)
        raise _no_listing(meant, bucket.kind, url)

    def folders(self, url: Url) -> tuple[list[str], list[Any]]:
        """Names (with all that is above them) of the folders right below a prefix, and objects right below it."""
        bucket = self.bucket(url.root)
        try:
            found = library().list_with_delimiter(bucket.patient_store(), url.key or None)
        except BaseException as error:
            meant = translate(error, str(url), bucket.kind)
        else:
            return list(found["common_prefixes"]), list(found["objects"])
        raise _no_listing(meant, bucket.kind, url)


def _no_listing(error: Exception, kind: str, url: Url) -> Exception:
    if isinstance(error, NotNow):
        return unavailable(error)
    if kind == "http" and not isinstance(error, PermissionError):
        return OSError(
            errno.ENOTSUP,
            "a web server does not say what lies in a folder; name the objects: files([...]), or folder(..., "
            "manifest='labels.csv')",
            str(url),
        )
    return error
