"""Ways between machines that have several network interfaces: where servers listen, and who connects from where.

A rank connects from the interface that is its own (``planning.rails``) to one of the other machine's in the same
network. Where that does not work, it connects as if there was only one.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
import time

from headrace.channel import wire
from headrace.channel.wire import Wire
from headrace.cluster.messages import Node
from headrace.cluster.ports import Ports, listen_on
from headrace.core import environment, topology
from headrace.core.errors import HostUnavailable, ProtocolError
from headrace.planning.rails import Nic, worth_using

_GET_ADDRESS, _GET_MASK = 0x8915, 0x891B
_REQUEST = struct.Struct("16s24s")
"""What the kernel is asked with: the interface's name, and room for a socket's address."""
_ADDRESSES_6 = "/proc/net/if_inet6"
_EVERYWHERE = "00"
"""The scope of an IPv6 address that is good beyond its link."""
_REACH = 2.0
"""Seconds in which a machine answers by a rail. (That its processes are busy for longer is not the rail's fault.)"""
_AGAIN, _SOON = 60.0, 5.0
"""Seconds after which a rail that failed is tried again; and one by which a machine answered, but no process."""


def read_nics(root: str = "") -> tuple[Nic, ...]:
    """The network interfaces of this machine, or of the container that this process is in; none where that was
    switched off. ``root``: where the system's own tree is mounted, if not where it usually is."""
    if not environment.rails():
        return ()
    return tuple(
        Nic(one.device, address_of(one.name), one.speed, one.up)
        for one in topology.read_interfaces(root or topology.SYS)
    )


def address_of(name: str) -> str:
    """The address of a network interface with the bits of its network, as in ``10.1.0.7/24``; empty: it has none."""
    request = _REQUEST.pack(name.encode()[:15], b"")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        # (family and port come first)
        address, mask = (
            socket.inet_ntoa(fcntl.ioctl(sock, what, request)[20:24]) for what in (_GET_ADDRESS, _GET_MASK)
        )
        return ipaddress.IPv4Interface(f"{address}/{mask}").with_prefixlen
    with contextlib.suppress(OSError, ValueError), open(_ADDRESSES_6, encoding="ascii") as file:
        for line in file:
            digits, _, bits, scope, _, owner = line.split()
            if owner == name and scope == _EVERYWHERE:
                return f"{ipaddress.IPv6Address(bytes.fromhex(digits))}/{int(bits, 16)}"
    return ""


def rails_of(host: str, root: str = "") -> tuple[str, ...]:
    """Addresses of this machine at which others may reach it: ``host`` first, if that is one of them. None where
    there is nothing to choose from."""
    with contextlib.suppress(ValueError):  # (a name)
        if ipaddress.ip_address(host).is_loopback:
            return ()
    found = [nic.address.partition("/")[0] for nic in worth_using(read_nics(root))]
    return tuple(sorted(found, key=lambda one: one != host)) if found != [host] else ()


def listen_at(host: str, ports: Ports, rails: tuple[str, ...] = ()) -> list[socket.socket]:
    """Sockets that listen at an address and, at the same port, at those of rails; of these, where it can be had."""
    first = listen_on(host, ports)
    port = first.getsockname()[1]
    out = [first]
    for rail in rails:
        if rail != host:
            # (who finds nobody there tries the other one)
            with contextlib.suppress(OSError, HostUnavailable):
                out.append(listen_on(rail, (port, port)))
    return out


class Dialer:
    """Connects to other machines, by a rail where there is one. Threads share it."""

    def __init__(self, rail: str = "") -> None:
        """``rail``: the address to connect from, with the bits of its network; empty: any."""
        self._own = ipaddress.ip_interface(rail) if rail else None
        self._failed: dict[str, float] = {}
        """By node: until when its rails are left alone."""

    def connect(self, node: Node, port: int, certificate: str, seconds: float) -> Wire:
        """To somebody who listens on a node. Raises OSError or ProtocolError."""
        rail, failed = self._rail_to(node), False
        if self._own is not None and rail and self._failed.get(node.id, 0.0) <= time.monotonic():
            deadline = time.monotonic() + seconds
            sock = _reach((rail, port), str(self._own.ip), min(seconds, _REACH))
            if sock is not None:
                try:
                    return wire.start_tls(sock, certificate, f"{rail}:{port}", deadline - time.monotonic())
                except ProtocolError:  # (somebody else's machine)
                    pass
                except OSError:
                    # (who does not answer now, or ends it, would hardly do better at another address of its machine;
                    # if it is another machine after all, that is found out the next time)
                    self._failed[node.id] = time.monotonic() + _SOON
                    raise
            failed = True
        connection = wire.connect_tls((node.host, port), certificate, seconds)
        if failed:  # (it was the rail, then)
            self._failed[node.id] = time.monotonic() + _AGAIN
        return connection

    def _rail_to(self, node: Node) -> str:
        """An address of the node's in the network of this end's; empty: it has none."""
        if self._own is None:
            return ""
        near = [one for one in node.rails if _within(one, self._own)]
        # (where all rails are one network, those of one end go to different ones of the other)
        return near[int(self._own.ip) % len(near)] if near else ""


def _reach(address: tuple[str, int], source: str, seconds: float) -> socket.socket | None:
    """A connection to a machine, for which no process of it has to run; None where it does not answer."""
    try:
        return socket.create_connection(address, seconds, (source, 0))
    except OSError:
        return None


def _within(address: str, own: ipaddress.IPv4Interface | ipaddress.IPv6Interface) -> bool:
    try:
        return ipaddress.ip_address(address) in own.network
    except ValueError:  # (it was sent by somebody)
        return False
