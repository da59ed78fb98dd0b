"""Buckets that this process has open. A forked child opens its own."""

from __future__ import annotations

import ctypes
import os
import threading
from datetime import timedelta
from typing import Any

from headrace.core import environment
from headrace.core.errors import OptionError
from headrace.sources.buckets.library import library
from headrace.sources.buckets.options import Options
from headrace.sources.buckets.profiles import from_profile
from headrace.sources.buckets.traffic import Traffic
from headrace.sources.buckets.urls import SCHEMES

WAITS = (1, 2, 4, 8, 16, 32, 64)
"""Seconds without a byte after which a request is given up; which of them, ``Opened.wait`` says."""
_SLACK = 4.0
"""A request that has no byte after so many times what others take in all hangs."""
_LATE = 1024
"""Requests that were given up of which it is remembered, at most."""
_TIMEOUT = "1h"
"""For a request as a whole: objects may be large, and connections slow."""
_CONNECT = "5s"
_RETRIES: dict[str, Any] = {
    "max_retries": 10,
    "retry_timeout": timedelta(seconds=60),
    "backoff": {
        "init_backoff": timedelta(seconds=0.1),
        "max_backoff": timedelta(seconds=4),
        "base": 2,
    },
}
"""Of listings: half a minute, as whoever starts a program waits for it."""


class Opened:
    """A bucket, and the requests to it.

    A request that stands still is ended after a while, and whoever wanted the object asks again: by far most of them
    are answered at once then. One that was given up gets twice the time when it is made again, so that storage which
    is always slow is read all the same.
    """

    def __init__(self, root: str, options: Options) -> None:
        self.kind = SCHEMES[root.partition("://")[0]]
        self.traffic = Traffic()
        self._root, self._options = root, options
        self._lock = threading.Lock()
        self._stores: dict[int, Any] = {}
        self._late: dict[object, int] = {}
        self._config: tuple[dict[str, Any], Any] | None = None

    def wait(self, request: object = None) -> int:
        """Which of ``WAITS`` a request gets."""
        usual = _SLACK * self.traffic.usual
        step = next((at for at, seconds in enumerate(WAITS) if seconds >= usual), len(WAITS) - 1)
        return max(step, self._late.get(request, 0)) if self._late else step

    def late(self, request: object, step: int) -> None:
        """It was given up after so many seconds."""
        with self._lock:
            if len(self._late) >= _LATE:
                self._late.clear()
            self._late[request] = min(step + 1, len(WAITS) - 1)

    def store(self, step: int) -> Any:
        """The library's client whose requests are given up after ``WAITS[step]`` seconds. They are made once:
        whether to make one again is decided where all that refuses is known."""
        found = self._stores.get(step)
        if found is None:
            with self._lock:
                found = self._stores.get(step) or self._open(f"{WAITS[step]}s", {"max_retries": 0})
                self._stores[step] = found
        return found

    def patient_store(self) -> Any:
        """A client that makes requests again by itself: for listings, which are a chain of many."""
        found = self._stores.get(-1)
        if found is None:
            with self._lock:
                found = self._stores.get(-1) or self._open("30s", _RETRIES)
                self._stores[-1] = found
        return found

    def _open(self, read_timeout: str, retries: dict[str, Any]) -> Any:
        client: dict[str, Any] = {
            "timeout": _TIMEOUT,
            "connect_timeout": _CONNECT,
            "read_timeout": read_timeout,
        }
        client.update(self._options.client())
        stores = library()._store
        if self._config is None:
            self._config = self._configured()
        config, provider = self._config
        endpoint = self._options.endpoint or str(config.get("endpoint", ""))
        if self.kind == "s3":
            endpoint = endpoint or environment.aws_endpoint()
        if endpoint.startswith("http://") or self._root.startswith("http://"):
            client.setdefault("allow_http", True)  # (it was said which server, and how)
        arguments: dict[str, Any] = {"client_options": client, "retry_config": retries}
        if self.kind != "http":
            arguments["config"] = config
            if provider is not None:
                arguments["credential_provider"] = provider
        try:
            return getattr(stores, _CLASSES[self.kind]).from_url(self._root, **arguments)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise OptionError(f"{self._root}: {_why(error, [*config, *client])}") from None

    def _configured(self) -> tuple[dict[str, Any], Any]:
        """Options of the bucket, and who provides credentials, where the library does not find them itself."""
        config, provider = self._options.config(), None
        if "endpoint_url" in config:
            config["endpoint"] = config.pop("endpoint_url")
        if self.kind == "http":
            if config:
                raise OptionError(
                    f"{self._root}: a web server takes no storage_options but those of the connection, got "
                    f"{', '.join(sorted(config))}"
                )
        elif self.kind == "s3" and not self._options.has_credentials():
            more, provider = from_profile(self._options.profile)
            config = {**more, **config}
        return config, provider


_CLASSES = {"s3": "S3Store", "gs": "GCSStore", "az": "AzureStore", "http": "HTTPStore"}


def _why(error: BaseException, names: list[str]) -> str:
    """What is wrong with options, in words that have none of their values."""
    if type(error).__name__ == "UnknownConfigurationKeyError":
        wrong = [name for name in names if f"'{name}'" in str(error)]
        return f"storage_options: {', '.join(wrong) or 'one of them'} is not known for this kind of storage"
    if isinstance(error, TypeError | ValueError) or type(error).__name__ == "GenericError":
        return f"storage_options: a value cannot be used; there are {', '.join(sorted(names))}"
    return (
        f"it cannot be opened ({type(error).__name__}); look at storage_options: {', '.join(sorted(names))}"
    )


_lock = threading.Lock()
_here: dict[tuple[str, Options], Opened] = {}


def opened(root: str, options: Options) -> Opened:
    """The bucket as this process has it open: one for all who use it with the same options."""
    found = _here.get((root, options))
    if found is None:
        with _lock:
            found = _here.setdefault((root, options), Opened(root, options))
    return found


def _in_child() -> None:
    # Clients of the parent are never freed here: to that end they would talk to threads that only the parent has, and
    # wait for locks that these may have held.
    global _lock, _here
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_here))
    _lock, _here = threading.Lock(), {}


os.register_at_fork(after_in_child=_in_child)
