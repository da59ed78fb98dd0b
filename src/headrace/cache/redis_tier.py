"""A tier in a Redis or Valkey server, or a cluster of these: samples by key, for all machines that know it.

What is kept has a checksum before it, and is served whole or not at all. Bytes are reserved in a counter of the
server's before they are sent, so no more are kept than the budget says; what a killed process had reserved and not
sent stays reserved. (In a cluster, redis-py sends again what was not answered in time: that may be counted twice, or
what is kept not at all. Counter and samples lie on different servers there, so no transaction has both.) A server
that does not answer is left alone for a while, and everything comes from storage.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.cache.keyed import Piece
from headrace.core.errors import MissingExtra
from headrace.planning.breaker import Breaker

_PREFIX = b"headrace:1:"
_BYTES = "headrace:1:bytes"
"""The counter of what is kept."""
_TIMEOUT = 2.0
"""Seconds for the server to answer."""
_FULL = 5.0
"""Seconds for which a tier that had no room is not asked again."""
_AT_ONCE = 128
"""Keys of one request."""
_LARGEST = 64 << 20
"""Bytes of a sample that is kept."""
_DROP = "local length = redis.pcall('STRLEN', KEYS[1]) redis.call('DEL', KEYS[1]) return length"
"""Delete a key, and say how long it was. By two commands, what goes may be what somebody has put there in between, of
another length. It has one key, so it is the same in a cluster; GETDEL would do, but is unknown to older servers."""


@dataclass(frozen=True)
class RedisTier:
    """A server as a tier. It travels to workers."""

    url: str
    budget: int

    @property
    def path(self) -> str:
        """The URL without its password."""
        return hide_password(self.url)

    def open(self) -> OpenRedis:
        """For this process. Whether the server answers shows when it is asked."""
        return OpenRedis(self)


def hide_password(url: str) -> str:
    """A URL as it may be shown."""
    return re.sub(r"//[^@/]*@", "//***@", url)


class OpenRedis:
    """See ``OpenTier``."""

    def __init__(self, tier: RedisTier) -> None:
        self._tier = tier
        self._client, self._errors = connect(tier.url)
        self._breaker, self._lock = Breaker(), threading.Lock()
        self._not_before = 0.0

    @property
    def budget(self) -> int:
        """See ``OpenTier``."""
        return self._tier.budget

    @property
    def has_room(self) -> bool:
        """See ``OpenTier``."""
        return time.monotonic() >= self._not_before

    def has_room_ahead(self, nbytes: float) -> bool:
        """See ``OpenTier``. What is copied ahead of need stays, so there is no room of its own for it."""
        return self.has_room

    def get_many(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        """See ``OpenTier``."""
        out: list[memoryview | None] = []
        for first in range(0, len(keys), _AT_ONCE):
            part = keys[first : first + _AT_ONCE]
            found = self._ask(lambda pipe, part=part: [pipe.get(_PREFIX + key) for key in part])
            out += [None] * len(part) if found is None else [_checked(one) for one in found]
        return out

    def has_many(self, keys: Sequence[bytes]) -> list[bool]:
        """See ``OpenTier``. Where the server does not answer, all counts as being there: nobody need send it."""
        found = self._ask(lambda pipe: [pipe.exists(_PREFIX + key) for key in keys]) if keys else []
        return [True] * len(keys) if found is None else [one == 1 for one in found]

    def put_many(self, samples: Sequence[tuple[bytes, Sequence[Piece]]]) -> int:
        """See ``OpenTier``."""
        if not samples or not self.has_room:
            return 0
        records = [(key, _record(pieces)) for key, pieces in samples]
        records = [(key, record) for key, record in records if len(record) <= _LARGEST]
        kept = 0
        for first in range(0, len(records), _AT_ONCE):
            kept += self._put(records[first : first + _AT_ONCE])
        return kept

    def _put(self, records: list[tuple[bytes, bytes]]) -> int:
        nbytes = sum(len(record) for _, record in records)
        reserved = self._ask(lambda pipe: pipe.incrby(_BYTES, nbytes))
        if reserved is None:
            return 0
        spare = nbytes
        try:
            if reserved[0] > self._tier.budget:
                self._not_before = time.monotonic() + _FULL
                return 0
            done = self._ask(lambda pipe: [pipe.set(_PREFIX + key, one, nx=True) for key, one in records])
            if done is None:  # (any of them may be there, and what is there has to be counted)
                spare = 0
                return 0
            # (one that was there already was not kept twice; for one that is an error, the server has no memory)
            kept = [len(record) for (_, record), one in zip(records, done, strict=True) if one is True]
            spare -= sum(kept)
            if any(isinstance(one, Exception) for one in done):
                self._not_before = time.monotonic() + _FULL
            return len(kept)
        finally:
            if spare:
                self._ask(lambda pipe: pipe.decrby(_BYTES, spare))

    def drop_many(self, keys: Sequence[bytes]) -> None:
        """See ``OpenTier``."""
        for first in range(0, len(keys), _AT_ONCE):
            names = [_PREFIX + key for key in keys[first : first + _AT_ONCE]]
            # (as a command, since pipelines of redis-py have no eval() for clusters)
            lengths = self._ask(
                lambda pipe, names=names: [pipe.execute_command("EVAL", _DROP, 1, name) for name in names]
            )
            if lengths is None:
                return
            freed = sum(one for one in lengths if type(one) is int)
            if freed:
                self._ask(lambda pipe, freed=freed: pipe.decrby(_BYTES, freed))

    def put_ahead(self, samples: Sequence[tuple[bytes, Sequence[Piece]]]) -> int | None:
        """See ``OpenTier``."""
        self.put_many(samples)
        return None

    def release(self, numbers: Sequence[int]) -> None:
        """See ``OpenTier``."""

    def close(self) -> None:
        """See ``OpenTier``."""
        self._client.close()

    def _ask(self, fill: Any) -> list[Any] | None:
        """Some commands in one request; None: the server does not answer."""
        with self._lock:
            if not self._breaker.may_ask(time.monotonic()):
                return None
        try:
            pipe = (
                self._client.pipeline(transaction=False) if not self._clustered else self._client.pipeline()
            )
            fill(pipe)
            found: list[Any] = pipe.execute(raise_on_error=False)
            if found and all(isinstance(one, Exception) and not _is_about_a_key(one) for one in found):
                raise found[0]
        except self._errors as error:
            with self._lock:
                first = self._breaker.failed(time.monotonic())
            if first:
                warnings.warn(
                    f"the tier {self._tier.path} does not answer ({type(error).__name__}: {error}); samples come "
                    "from storage meanwhile, and it is asked again now and then",
                    stacklevel=2,
                )
            return None
        with self._lock:
            self._breaker.went_well()
        return found

    @property
    def _clustered(self) -> bool:
        return type(self._client).__name__.endswith("Cluster")


def connect(url: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """A client for a URL, and the errors that it may raise. ``redis+cluster://`` is a cluster of servers."""
    try:
        import redis
        from redis.cluster import RedisCluster
    except ImportError:
        raise MissingExtra("redis", "redis", f"tier={hide_password(url)!r}") from None
    times = {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT}
    # (what redis-py raises of a cluster of which nobody answers is no RedisError)
    errors = (redis.RedisError, redis.exceptions.RedisClusterException, OSError)
    try:
        if url.startswith(("redis+cluster://", "rediss+cluster://")):
            return RedisCluster.from_url(url.replace("+cluster", "", 1), **times), errors
        return redis.Redis.from_url(url, **times), errors
    except redis.exceptions.RedisClusterException as error:
        raise TimeoutError(str(error)) from None
    except redis.RedisError as error:
        raise OSError(str(error)) from None


def _is_about_a_key(error: Exception) -> bool:
    """Whether the server is well: it has no memory for a sample, or something else has that name."""
    return str(error).startswith(("OOM", "WRONGTYPE", "command not allowed when used memory"))


def _record(pieces: Sequence[Piece]) -> bytes:
    body = b"".join([bytes(piece) for piece in pieces])
    return zlib.crc32(body).to_bytes(4, "little") + body


def _checked(record: Any) -> memoryview | None:
    """What stands in a record, if it is one."""
    if not isinstance(record, bytes) or len(record) < 4:
        return None
    body = memoryview(record)[4:]
    return body if zlib.crc32(body) == int.from_bytes(record[:4], "little") else None
