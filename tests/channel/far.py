"""A host, jobs and commands that know each other by an address alone.

``python -m tests.channel.far host|job|status|stop HOST PORT [SPEC]``; the specification of a job is that of
``tests.sharing.jobs``.
"""

from __future__ import annotations

import functools
import json
import sys

import msgspec

from headrace.host import control
from headrace.host.service import Service
from tests.channel.tcp import TcpListener, TcpWay


def main(what: str, host: str, port: str, spec: str = "") -> None:
    """Do one of them."""
    address = host, int(port)
    if what == "host":
        service = Service(TcpListener(*address))
        print("listening", flush=True)
        service.run()
    elif what == "job":
        from headrace.loader import sharing
        from tests.sharing import jobs

        sharing.SharedClient = functools.partial(  # type: ignore[attr-defined, assignment, misc]
            sharing.SharedClient, way=TcpWay(address)
        )
        jobs.run(json.loads(spec))
    elif what == "status":
        print(msgspec.json.encode(control.status(20, TcpWay(address))).decode(), flush=True)
    else:
        print(json.dumps(control.stop(20, TcpWay(address))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
