"""A web server with ETags and ranges, which can be told to misbehave."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Web(ThreadingHTTPServer):
    """``files``: what there is, by path. ``log``: what was asked for, and which bytes of it."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.log: list[tuple[str, str]] = []
        self.sent = 0
        self.ranges = self.etags = self.lengths = True
        self.cut_after: int | None = None
        """Connections end after so many bytes of a file."""
        self.cuts = 1 << 30
        """How many of them do."""
        self.busy = 0
        """Requests that are answered by 503, from now on."""
        self.pause = 0.0
        """Seconds between two pieces."""
        self.gate: threading.Event | None = None
        """Until it is set, no answer is begun once answers of ``free`` bytes were. (Those that were begun are sent in
        full: else parts that are fetched at the same time might all wait, and none be complete.)"""
        self.free = self.begun = 0
        self.then: Callable[[], None] | None = None
        """Called once, when so many bytes were sent."""
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"


class _Handler(BaseHTTPRequestHandler):
    server: Web
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        web, path = self.server, self.path.partition("?")[0][1:]
        asked = self.headers.get("Range", "")
        with web.lock:
            web.log.append((path, asked))
            busy = web.busy > 0
            web.busy -= busy
        if busy:
            return self._plain(503)
        data = web.files.get(path)
        if data is None:
            return self._plain(404)
        etag = f'"{hashlib.md5(data).hexdigest()}"'
        matched = re.fullmatch(r"bytes=(\d+)-(\d*)", asked) if web.ranges else None
        if self.headers.get("If-Range") not in (None, etag):
            matched = None
        start, end = 0, len(data)
        if matched:
            start = int(matched[1])
            end = min(len(data), int(matched[2]) + 1 if matched[2] else len(data))
            if start >= len(data):
                return self._plain(416)
        self.send_response(206 if matched else 200)
        if matched:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        if web.etags:
            self.send_header("ETag", etag)
        if web.lengths:
            self.send_header("Content-Length", str(end - start))
        else:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self._send(data[start:end])

    def _send(self, data: bytes) -> None:
        web, sent = self.server, 0
        with web.lock:
            # (who only looks at what it is need not wait: else one who comes second may never come so far)
            waits = web.gate is not None and web.begun >= web.free and len(data) > 8192
            web.begun += len(data)
        if waits:
            assert web.gate is not None
            web.gate.wait()
        try:
            while sent < len(data):
                piece = data[sent : sent + 16384]
                with web.lock:
                    then = web.then if web.sent >= web.free else None
                    web.then = None if then else web.then
                if then is not None:
                    then()
                with web.lock:
                    cut = web.cut_after is not None and sent + len(piece) > web.cut_after and web.cuts > 0
                    web.cuts -= cut
                    web.sent += 0 if cut else len(piece)
                if cut:
                    self.close_connection = True
                    self.connection.close()
                    return
                self.wfile.write(piece)
                sent += len(piece)
                if web.pause:
                    time.sleep(web.pause)
        except OSError:
            self.close_connection = True

    def _plain(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if status == 503:
            self.send_header("Retry-After", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def web() -> Iterator[Web]:
    """One that runs."""
    server = Web()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        if server.gate is not None:
            server.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()
