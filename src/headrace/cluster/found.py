"""Where the server of this node is found: a socket in the directory of the user's host."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from typing import Any

from headrace.cluster.members import TROUBLE, Members, members_of
from headrace.core.errors import HostUnavailable
from headrace.host.runtime import check_length, runtime_dir, runtime_dirs

_PATIENCE = 10.0
"""Seconds for which a server is looked for that should be there: it may be starting."""
_PAUSE = 0.1


def socket_of(node: str) -> str:
    """The socket of a node's server. Several nodes may be on one machine."""
    path = os.path.join(runtime_dir(), _name(node))
    check_length(path)
    return path


def _name(node: str) -> str:
    return f"node-{node[:16]}.sock"


def sweep() -> None:
    """Remove sockets of servers that are gone."""
    for path in _sockets():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
            tried.settimeout(1.0)
            try:
                tried.connect(path)
            except ConnectionRefusedError:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            except OSError:
                continue


def find_members(*, must: bool) -> tuple[str, Members] | None:
    """The server of this node, by its socket, and the others by way of it; None where there is none, and need not be.

    Inside a process of Ray's it is that of Ray's node, else any on this machine.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        said = f"there is none of user {os.geteuid()}"
        for path in _candidates():
            try:
                return path, members_of(path)
            except TROUBLE as error:
                said = str(error)
        if not must:
            return None
        runtime_dir(
            create=False
        )  # (one that is another user's has no server for this one, and will have none)
        if time.monotonic() > deadline:
            raise HostUnavailable(
                f'share="ray", or HEADRACE_SHARE=ray: no node server answers on this machine ({said}). Start one on '
                "each node of the Ray cluster with: headrace cluster start; and look at them with: headrace cluster "
                "status. Servers are found by the user that Ray runs as, where HEADRACE_RUNTIME_DIR is the same for "
                "both"
            )
        time.sleep(_PAUSE)


def _candidates() -> list[str]:
    node = ray_node()
    return [path for path in _sockets() if not node or os.path.basename(path) == _name(node)]


def _sockets() -> list[str]:
    found: list[str] = []
    for directory in runtime_dirs():
        with contextlib.suppress(OSError):
            names = sorted(os.listdir(directory))
            found += [
                os.path.join(directory, name)
                for name in names
                if name.startswith("node-") and name.endswith(".sock")
            ]
    return found


def ray_node() -> str:
    """The node of Ray that this process runs on, where it is one of Ray's; else empty. Ray is not imported for it."""
    ray: Any = sys.modules.get("ray")
    try:
        if ray is None or not ray.is_initialized():
            return ""
        found: str = ray.get_runtime_context().get_node_id()
        return found
    except Exception:  # (half imported, or on its way out)
        return ""
