"""A proxy in front of a server that does to a share of the requests what storage does on a bad day, and counts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_LARGE = 1 << 16


@dataclass
class Faults:
    """Shares of requests, between 0 and 1. They may be set at any time."""

    busy: float = 0.0
    """Answered by ``status``, without being passed on."""
    status: int = 503
    retry_after: str = ""
    drop: float = 0.0
    """The connection is cut in the midst of the answer."""
    stall: float = 0.0
    """Held back for ``stall_seconds`` in the midst of the answer."""
    stall_seconds: float = 30.0
    latency: float = 0.0
    """Seconds that each answer comes late."""
    bandwidth: float = 0.0
    """Bytes a second of all answers together; 0: no limit."""
    only: str = ""
    """Only requests whose first line has this in it get into trouble."""


class FaultProxy:
    """Runs in a thread of its own. ``counts``: requests by what was done with them."""

    def __init__(self, port: int, seed: int = 7) -> None:
        """``port``: of the server on this machine that requests are passed on to."""
        self.faults = Faults()
        self.counts: Counter[str] = Counter()
        self.bytes = 0
        """Of answers, heads and bodies."""
        self.under_way = self.most_under_way = 0
        self.lines: list[str] | None = None
        """First lines of all requests, once it is a list."""
        self._upstream, self._dice = port, random.Random(seed)
        self._free_at = 0.0
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._client, "127.0.0.1", 0, limit=1 << 20, backlog=512)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()

    @property
    def requests(self) -> int:
        """All that came in."""
        return sum(self.counts.values())

    def close(self) -> None:
        """Cut all connections."""

        async def end() -> None:
            self._server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- one connection ---------------------------------------------------------------------------------------

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        try:
            while await self._request(reader, writer, server):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            for one in (writer, *(writer for _, writer in server)):
                with contextlib.suppress(Exception):
                    one.transport.abort()

    def _draw(self, line: str) -> str:
        faults, dice = self.faults, self._dice.random()
        if faults.only and faults.only not in line:
            return "give"
        for kind, share in (("busy", faults.busy), ("drop", faults.drop), ("stall", faults.stall)):
            if dice < share:
                return kind
            dice -= share
        return "give"

    async def _request(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
    ) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.split(b"\r\n", 1)[0].decode("latin-1")
        body = await reader.readexactly(_length(head) or 0)
        if self.lines is not None:
            self.lines.append(line)
        kind = self._draw(line)
        self.counts[kind] += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.faults.latency:
                await asyncio.sleep(self.faults.latency)
            if kind == "busy":
                await self._say(writer, _busy(self.faults))
                return True
            if not server:
                server.append(await asyncio.open_connection("127.0.0.1", self._upstream, limit=1 << 20))
            answers, asks = server[0]
            asks.write(head + body)
            return await self._answer(answers, writer, kind, line.startswith("HEAD"))
        finally:
            self.under_way -= 1

    async def _answer(
        self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: str, headless: bool
    ) -> bool:
        head = await answers.readuntil(b"\r\n\r\n")
        length = 0 if headless or head[9:12] in (b"204", b"304") else _length(head)
        if length is None:
            await self._say(writer, head)
            await _chunks(answers, lambda data: self._say(writer, data))
            return True
        first = min(length, _LARGE) // 2
        start = await answers.readexactly(first)
        if kind == "drop":
            await self._say(writer, head + start)
            return False
        if kind == "stall":
            await self._say(writer, head + start)
            await asyncio.sleep(self.faults.stall_seconds)
            head = start = b""
        left = length - first
        start += await answers.readexactly(min(left, _LARGE))
        await self._say(writer, head + start)
        left -= min(left, _LARGE)
        while left:
            await self._say(writer, await answers.readexactly(min(left, _LARGE)))
            left -= min(left, _LARGE)
        return True

    async def _say(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self.faults.bandwidth:
            now = self._loop.time()
            self._free_at = max(now, self._free_at) + len(data) / self.faults.bandwidth
            await asyncio.sleep(self._free_at - now)
        self.bytes += len(data)
        writer.write(data)
        await writer.drain()


def _length(head: bytes) -> int | None:
    """Of the body; None: it comes in chunks."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
        if name.lower() == b"transfer-encoding":
            return None
    return 0


async def _chunks(answers: asyncio.StreamReader, say: Callable[[bytes], Awaitable[None]]) -> None:
    while True:
        line = await answers.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        await say(line + await answers.readexactly(size + 2))
        if not size:
            return


def _busy(faults: Faults) -> bytes:
    code = {503: "SlowDown", 429: "TooManyRequests", 403: "AccessDenied"}.get(faults.status, "InternalError")
    body = (
        f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>Reduce your request rate.</Message></Error>"
    )
    after = f"Retry-After: {faults.retry_after}\r\n" if faults.retry_after else ""
    head = (
        f"HTTP/1.1 {faults.status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
    )
    return f"{head}{after}\r\n{body}".encode()


@contextmanager
def fault_proxy(port: int, seed: int = 7) -> Iterator[FaultProxy]:
    """A proxy that runs until the end of the block."""
    proxy = FaultProxy(port, seed)
    try:
        yield proxy
    finally:
        proxy.close()
