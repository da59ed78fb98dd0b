"""Storage behind a real connection: a server that refuses, drops and holds back what it is told to; its source."""

from __future__ import annotations

import hashlib
import http.client
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

import headrace as hr

Rule = Callable[["HttpStore", int, int], str]
"""What the server does for a sample that is asked for the n-th time: give, busy, drop, gone."""


def content(index: int) -> bytes:
    return index.to_bytes(8, "little") * 8


def give(store: HttpStore, index: int, times: int) -> str:
    return "give"


class HttpStore(ThreadingHTTPServer):
    """A server of samples. ``asked`` counts how often each was asked for."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, rule: Rule, retry_after: str = "0") -> None:
        self.rule, self.retry_after = rule, retry_after
        self.asked: Counter[int] = Counter()
        self.changed = threading.Condition()
        super().__init__(("127.0.0.1", 0), _Handler)

    def wait_for(self, samples: Any) -> None:
        """Until all of these have been asked for."""
        with self.changed:
            self.changed.wait_for(lambda: set(samples) <= set(self.asked))


class _Handler(BaseHTTPRequestHandler):
    server: HttpStore

    def do_GET(self) -> None:
        index = int(self.path[1:])
        with self.server.changed:
            self.server.asked[index] += 1
            times = self.server.asked[index]
            self.server.changed.notify_all()
        what = self.server.rule(self.server, index, times)
        if what == "drop":
            self.close_connection = True
            return
        self.send_response({"give": 200, "busy": 503, "gone": 404}[what])
        data = content(index) if what == "give" else b""
        if what == "busy":
            self.send_header("Retry-After", self.server.retry_after)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(rule: Rule = give, retry_after: str = "0") -> Iterator[HttpStore]:
    """A server that runs."""
    store = HttpStore(rule, retry_after)
    thread = threading.Thread(target=store.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.shutdown()
        store.server_close()
        thread.join()


class HttpSource:
    """Samples of such a server. It has no locations: only what every source has."""

    encoded = True

    def __init__(self, store: HttpStore, size: int) -> None:
        self.port, self.size = store.server_address[1], size
        self.targets = np.arange(size)

    def __len__(self) -> int:
        return self.size

    def read_many(self, indices: Any) -> list[bytes | BaseException]:
        return [self._read(int(index)) for index in indices]

    def _read(self, index: int) -> bytes | BaseException:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request("GET", f"/{index}")
            answer = connection.getresponse()
            data = answer.read()
        except (ConnectionError, http.client.HTTPException) as error:
            return hr.NotNow(f"the connection was lost ({error!r})")
        finally:
            connection.close()
        if answer.status in (429, 503):
            wait = float(answer.headers.get("Retry-After", 0))
            return hr.NotNow(f"status {answer.status}", retry_after=wait)
        return data if answer.status == 200 else FileNotFoundError(f"status {answer.status}")

    def name(self, index: int) -> str:
        return f"http://127.0.0.1:{self.port}/{index}"

    identity = name

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.port} {self.size}".encode()).hexdigest()
