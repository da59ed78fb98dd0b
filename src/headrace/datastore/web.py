"""Files on web servers, as ``sources.storage.Storage`` has it: with ranges where the server knows them.

Nothing but the standard library is needed. Servers are asked for a part as a client would be that wants it all, so
those that sign URLs, redirect, or know nothing but GET are understood, too.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import re
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from headrace.core.errors import NotNow
from headrace.core.version import __version__
from headrace.datastore.errors import SourceChanged
from headrace.datastore.urls import public_url
from headrace.sources.location import Location
from headrace.sources.storage import Entry

_TIMEOUT = 60.0
"""Seconds for which a server may be silent."""
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_PIECE = 1 << 20
UNKNOWN = -1
"""The size of what a server does not say the size of."""


class Stop(threading.Event):
    """Ends what is under way when it is set: reads that wait for a server do not go on waiting."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets: set[Any] = set()

    def set(self) -> None:
        """From now on there is an end to everything."""
        super().set()
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def over(self, answer: Any) -> Iterator[None]:
        """While an answer is read."""
        connection = getattr(getattr(answer.fp, "raw", None), "_sock", None)  # (None: it cannot be had at)
        self._sockets.add(connection)
        try:
            if self.is_set():
                raise NotNow("ended")
            yield
        finally:
            self._sockets.discard(connection)


class WebStorage:
    """``http://`` and ``https://``. A version is a strong ETag, else a weak one, else a time of change; or empty."""

    def __init__(self, stop: Stop | None = None) -> None:
        self._stop = Stop() if stop is None else stop

    def describe(self, names: Sequence[bytes]) -> list[Entry | BaseException]:
        """See ``Storage``. The size is ``UNKNOWN`` where the server does not say it."""
        return [self._describe(name) for name in names]

    def below(self, prefix: bytes) -> Iterator[list[Entry]]:
        """Web servers do not say what they have."""
        yield from ()

    def read(self, locations: Sequence[Location]) -> list[bytes | BaseException]:
        """See ``Storage``; but what has changed since it had ``version`` is not read (``SourceChanged``)."""
        return [self._read(one) for one in locations]

    def ranges(self, name: bytes) -> bool:
        """Whether the server gives parts."""
        with self._ask(name, {"Range": "bytes=0-0"}) as answer:
            return int(answer.status) == 206

    def stream(self, name: bytes, version: bytes) -> Iterator[bytes]:
        """All of it, piece by piece, from a server that gives no parts."""
        have = 0
        try:
            with self._ask(name, {}) as answer, self._stop.over(answer):
                _check_version(answer, version, name)
                expected = _length(answer.headers.get("Content-Length"))
                while piece := _received(answer, _PIECE):
                    have += len(piece)
                    yield piece
        except (OSError, http.client.HTTPException) as error:
            raise _plain(error, name) from error
        if have < expected:
            raise NotNow(f"the connection ended {expected - have} bytes too early")

    def _describe(self, name: bytes) -> Entry | BaseException:
        try:
            with self._ask(name, {"Range": "bytes=0-0"}) as answer:
                size = _length(answer.headers.get("Content-Length"))
                if answer.status == 206:
                    size = _length(answer.headers.get("Content-Range", "").rpartition("/")[2])
                return Entry(name, size, _version(answer))
        except urllib.error.HTTPError as error:
            if error.code == 416:  # there is no first byte
                return Entry(name, 0, _version(error))
            return _plain(error, name)
        except Exception as error:
            return _plain(error, name)

    def _read(self, one: Location) -> bytes | BaseException:
        if one.length == 0:
            return b""
        end = "" if one.length is None else one.start + one.length - 1
        headers = {"Range": f"bytes={one.start}-{end}"}
        if one.version.startswith(b'"'):
            headers["If-Range"] = one.version.decode("latin-1")
        try:
            with self._ask(one.what, headers) as answer, self._stop.over(answer):
                _check_version(answer, one.version, one.what)
                if (
                    answer.status != 206
                ):  # it gives all of it, and no parts: then what was asked for is cut out
                    _skip(answer, one.start)
                wanted = one.length
                data = _received(answer, wanted) if wanted is not None else _received(answer, None)
                if wanted is not None and len(data) < wanted:
                    return NotNow(f"the connection ended {wanted - len(data)} bytes too early")
                return data
        except Exception as error:
            return _plain(error, one.what)

    def _ask(self, name: bytes, headers: dict[str, str]) -> Any:
        url, own = _credentials(os.fsdecode(name))
        request = urllib.request.Request(
            url,
            headers={
                "User-Agent": f"headrace/{__version__}",
                "Accept-Encoding": "identity",
                **headers,
            },
        )
        for header, value in own.items():
            request.add_unredirected_header(header, value)  # it is nobody else's business
        return urllib.request.urlopen(request, timeout=_TIMEOUT)


def _credentials(url: str) -> tuple[str, dict[str, str]]:
    """The URL without user and password, and these as a header."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, {}
    coded = base64.b64encode(unquote(user).encode()).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {coded}"}


def _length(text: str | None) -> int:
    return int(text) if text is not None and re.fullmatch(r"\d{1,18}", text.strip()) else UNKNOWN


def _version(answer: Any) -> bytes:
    found: str = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    return found.strip().encode("latin-1", "replace")


def _check_version(answer: Any, version: bytes, name: bytes) -> None:
    if version and _version(answer) != version:
        raise SourceChanged(f"{public_url(os.fsdecode(name))} has changed while it was read")


def _received(answer: Any, length: int | None) -> bytes:
    """So many bytes, or fewer where the connection ends before."""
    try:
        data: bytes = answer.read() if length is None else answer.read(length)
        return data
    except http.client.IncompleteRead as error:
        raise NotNow("the connection ended too early") from error


def _skip(answer: Any, count: int) -> None:
    while count > 0:
        piece = _received(answer, min(count, _PIECE))
        if not piece:
            raise NotNow("the connection ended too early")
        count -= len(piece)


def _plain(error: Exception, name: bytes) -> BaseException:
    """An error that tells what to do, and no secrets."""
    url = public_url(os.fsdecode(name))
    if isinstance(error, NotNow | SourceChanged):
        return error
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        if error.code in _BUSY:
            wait = _length(error.headers.get("Retry-After"))
            return NotNow(
                f"{url}: the server says {error.code} {error.reason}", retry_after=max(0, wait) or None
            )
        if error.code in (401, 403):
            return PermissionError(
                f"{url}: the server refuses it ({error.code} {error.reason}); it may need a login"
            )
        return FileNotFoundError(f"{url}: the server says {error.code} {error.reason}; check the URL")
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        return PermissionError(f"{url}: the server's certificate is not trusted ({reason.verify_message})")
    if isinstance(error, ValueError):
        return ValueError(f"{url} is no URL that can be read")
    if isinstance(error, OSError | http.client.HTTPException):
        return NotNow(f"{url}: {reason or type(error).__name__}")
    return error
