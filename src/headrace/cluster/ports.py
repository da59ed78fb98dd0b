"""Which ports a node's processes listen on: any, or some that a firewall leaves open."""

from __future__ import annotations

import errno
import socket

from headrace.core.errors import HostUnavailable, OptionError

Ports = tuple[int, int]
"""The first and the last; (0, 0): whichever the system chooses."""
ANY: Ports = (0, 0)

_LAST = 65535
_BACKLOG = 256


def parse_ports(text: str) -> Ports:
    """Ports as a user says them: ``"7400-7500"``, ``"7400"``; nothing: any."""
    if not text:
        return ANY
    first, dash, last = (one.strip() for one in text.partition("-"))
    ends = (first, last if dash else first)
    if not all(one.isascii() and one.isdecimal() for one in ends):
        raise OptionError(f"--ports {text}: expected a first and a last port, such as 7400-7500")
    found = int(ends[0]), int(ends[1])
    if not 1 <= found[0] <= found[1] <= _LAST:
        raise OptionError(f"--ports {text}: ports go from 1 to {_LAST}, and the first is not above the last")
    return found


def check_room(ports: Ports, helpers: int) -> None:
    """Whether a server and its helpers have a port each. Raises OptionError."""
    there, wanted = ports[1] - ports[0] + 1, 1 + helpers
    if ports != ANY and there < wanted:
        raise OptionError(
            f"--ports {show_ports(ports)}: {there} of them, and this node wants {wanted}: one for its server and one "
            f"for each of {helpers} helpers; give it more, or fewer helpers with --cpus"
        )


def show_ports(ports: Ports) -> str:
    """As a user says them."""
    return f"{ports[0]}-{ports[1]}"


def listen_on(host: str, ports: Ports) -> socket.socket:
    """A socket that listens on the first of these ports that is free. Raises HostUnavailable where none is."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(ports[0], ports[1] + 1):
        try:
            return socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES) or ports == ANY:
                raise
            said = error.strerror
    raise HostUnavailable(
        f"--ports {show_ports(ports)}: none of them is free on {host} ({said}); give it others"
    )
