"""One end of a transfer: sends rows, or has them written into its memory; prints what it took, as JSON.

python -m benchmarks.transport.ends WAY SIDE ADDRESS BYTES ROWS WINDOW
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from collections import deque
from typing import Any

import numpy as np

PORT = 7000
_LONG = struct.Struct("<q")


def connect(address: str) -> socket.socket:
    """To the receiver, once it listens."""
    until = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection((address, PORT), timeout=20)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def accept(address: str) -> socket.socket:
    """The sender."""
    with socket.create_server((address, PORT)) as listener:
        return listener.accept()[0]


def over_sockets(
    side: str, address: str, nbytes: int, rows: int, window: int, secure: bool
) -> tuple[float, float]:
    """Frames over TCP, with TLS or without: what headrace's wires are."""
    from headrace.channel import wire
    from headrace.channel.wire import Wire

    if side == "send":
        from headrace.cluster.certificates import make_certificate

        context, fingerprint = make_certificate("bench")
        sock = connect(address)
        sock.sendall(fingerprint.encode())
        out = wire.accept_tls(sock, context, "receiver", 10.0) if secure else Wire(sock, "receiver")
        row = memoryview(np.random.default_rng(0).integers(0, 255, nbytes, np.uint8).tobytes())
        out.receive(seconds=20.0)
        begun, cpu = time.perf_counter(), time.process_time()
        for _ in range(rows):
            out.send(b"row", [row], seconds=20.0)
        out.receive(seconds=60.0)
        return time.perf_counter() - begun, time.process_time() - cpu
    sock = accept(address)
    fingerprint = sock.recv(64, socket.MSG_WAITALL).decode()
    if secure:
        wrapped: Any = wire._client_context().wrap_socket(sock, server_hostname=None)
        assert wire.fingerprint_of(wrapped.getpeercert(binary_form=True)) == fingerprint
        into = Wire(wrapped, "sender")
    else:
        into = Wire(sock, "sender")
    memory = bytearray(nbytes * window)
    slots = [memoryview(memory)[at * nbytes : (at + 1) * nbytes] for at in range(window)]
    into.send(b"go", seconds=20.0)
    begun, cpu = time.perf_counter(), time.process_time()
    for number in range(rows):
        into.receive_message(seconds=20.0, body_limit=1 << 30)
        into.receive_into(slots[number % window], seconds=20.0)
    into.send(b"done", seconds=20.0)
    return time.perf_counter() - begun, time.process_time() - cpu


def over_nixl(side: str, address: str, nbytes: int, rows: int, window: int) -> tuple[float, float]:
    """One-sided writes with a notification. The receiver looks for notifications and does nothing else."""
    from nixl._api import nixl_agent, nixl_agent_config

    agent = nixl_agent(side, nixl_agent_config(backends=["UCX"]))
    memory = np.zeros(nbytes * window, np.uint8)
    base = memory.ctypes.data
    agent.register_memory(agent.get_reg_descs([(base, memory.nbytes, 0, "")], "DRAM"))
    sock = connect(address) if side == "send" else accept(address)
    mine = agent.get_agent_metadata()
    sock.sendall(_LONG.pack(len(mine)) + mine + _LONG.pack(base))
    length = _LONG.unpack(sock.recv(8, socket.MSG_WAITALL))[0]
    theirs = agent.add_remote_agent(sock.recv(length, socket.MSG_WAITALL))
    remote = _LONG.unpack(sock.recv(8, socket.MSG_WAITALL))[0]
    if side == "receive":
        sock.sendall(b"g")
        begun, cpu, got = time.perf_counter(), time.process_time(), 0
        while got < rows:
            found = sum(len(one) for one in agent.get_new_notifs().values())
            got += found
            if found:
                sock.sendall(b"." * found)  # (credits)
            else:
                time.sleep(20e-6)
        return time.perf_counter() - begun, time.process_time() - cpu
    memory[:] = np.random.default_rng(0).integers(0, 255, memory.nbytes, np.uint8)
    handles = []
    for at in range(window):
        local = agent.get_xfer_descs([(base + at * nbytes, nbytes, 0)], "DRAM")
        there = agent.get_xfer_descs([(remote + at * nbytes, nbytes, 0)], "DRAM")
        handles.append(agent.initialize_xfer("WRITE", local, there, theirs, b"row"))
    sock.recv(1)
    begun, cpu, credits, done = time.perf_counter(), time.process_time(), window, 0
    sock.setblocking(False)
    waiting: deque[Any] = deque()
    sent = 0
    while done < rows:
        while credits and sent < rows and len(waiting) < window:
            handle = handles[sent % window]
            agent.transfer(handle, b"row")
            waiting.append(handle)
            sent, credits = sent + 1, credits - 1
        while waiting and agent.check_xfer_state(waiting[0]) == "DONE":
            waiting.popleft()
            done += 1
        try:
            credits += len(sock.recv(4096))
        except BlockingIOError:
            time.sleep(20e-6)
    return time.perf_counter() - begun, time.process_time() - cpu


def main() -> None:
    """Run one end."""
    way, side, address = sys.argv[1:4]
    nbytes, rows, window = map(int, sys.argv[4:])
    if way == "nixl":
        seconds, cpu = over_nixl(side, address, nbytes, rows, window)
    else:
        seconds, cpu = over_sockets(side, address, nbytes, rows, window, way == "tls")
    print(json.dumps({"seconds": seconds, "cpu": cpu}), flush=True)
    os._exit(0)  # (NIXL does not survive an ordinary end where there is no CUDA)


if __name__ == "__main__":
    main()
