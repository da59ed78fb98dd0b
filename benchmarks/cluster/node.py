"""A node without Ray: its server and helpers. Says where they are, and is told of the others, by lines of JSON."""

from __future__ import annotations

import os
import sys

import msgspec

from headrace.cluster.certificates import make_certificate
from headrace.cluster.found import socket_of
from headrace.cluster.helper import Config, Helpers
from headrace.cluster.messages import Node, View
from headrace.cluster.server import NodeServer


def main() -> None:
    """``NAME HOST TOKEN MEMORY HELPERS``."""
    name, host, token = sys.argv[1:4]
    memory, helpers = map(int, sys.argv[4:6])
    server = NodeServer(name, token=token, memory=memory, log=lambda text: print(text, file=sys.stderr))
    path = socket_of(name)
    server.listen_unix(path)
    context, fingerprint = make_certificate(name)
    port = server.listen_tls(host, context)
    started = Helpers(Config(name, host, token, path), helpers)
    started.look(wait=True)
    node = Node(name, os.urandom(4).hex(), host, port, fingerprint, memory, path, started.all)
    print(msgspec.json.encode(node).decode(), flush=True)
    for line in sys.stdin:
        server.see(msgspec.json.decode(line, type=View))
        print("seen", flush=True)
    started.close()
    os._exit(0)


if __name__ == "__main__":
    main()
