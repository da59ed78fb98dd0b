"""The end that sends, for ``test_rows``: answers each grant with rows that follow from its number, or wrongly.

python -m tests.cluster.rows_driver WAY
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.channel import wire
from headrace.cluster.certificates import make_certificate
from headrace.cluster.helper import Client
from headrace.cluster.messages import Grant, Land, Rows, decode_request, encode
from headrace.cluster.nixl_rows import try_nixl
from headrace.cluster.rows import BESIDE


def field(number: int, place: int, nbytes: int) -> NDArray[np.uint8]:
    """The bytes of a field; none of them is 0."""
    return np.random.default_rng([number, place]).integers(1, 256, nbytes, np.uint8)


def main() -> None:
    """Serve one connection."""
    if sys.argv[1] == "nixl":
        try_nixl()  # (as helpers do: to import it takes seconds)
    context, fingerprint = make_certificate("sender")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(json.dumps([listener.getsockname()[1], fingerprint]), flush=True)
        sock, _ = listener.accept()
    client = Client(wire.accept_tls(sock, context, "receiver", 10.0))
    try:
        while True:
            request: Any = decode_request(client.connection.receive(seconds=None)[0])
            if isinstance(request, Land):
                client.land(request)
            elif isinstance(request, Grant):
                answer(client, request)
    except (OSError, EOFError):
        pass
    finally:
        client.close()


def answer(client: Client, grant: Grant) -> None:
    """What a grant asks for; ``recipe`` says what is to be wrong about it."""
    sizes = np.frombuffer(grant.samples, np.int64).tolist()
    rows = [field(grant.number, place, nbytes) for place, nbytes in enumerate(sizes)]
    match grant.recipe:
        case "short":
            client.give(grant, Rows(grant.number), [rows[0][:-1], *rows[1:]])
        case "beside":
            client.connection.send(encode(Rows(grant.number)), [one.data for one in rows], seconds=5.0)
        case "nothing":
            client.connection.send(encode(Rows(grant.number)), seconds=5.0)
        case "elsewhere":
            place = grant.place if grant.place == BESIDE else 1 << 40
            client.give(Grant(*[*_fields(grant)[:-1], place]), Rows(grant.number), rows)
        case _:
            client.give(grant, Rows(grant.number), rows)


def _fields(grant: Grant) -> list[Any]:
    return [getattr(grant, name) for name in grant.__struct_fields__]


if __name__ == "__main__":
    main()
