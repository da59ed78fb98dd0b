"""The first words on every channel to the shared host, and requests that are waited for."""

from __future__ import annotations

import contextlib
import time

import msgspec

from headrace.channel.channel import REPLY_LIMIT, Attached, Channel, Memory, receive_within, send_within
from headrace.coordinate.messages import encoder
from headrace.coordinate.protocol import Hello, Refused, Reply, Request, Welcome, decode_reply
from headrace.core.errors import HostGone, HostRefused, HostSilent, ProtocolError


def greet(channel: Channel, hello: Hello, seconds: float) -> tuple[Welcome, Attached | None]:
    """Say hello on a new channel; the host's welcome and what came beside it.

    Raises HostRefused with the reason if the host refuses, HostGone if it ended meanwhile, HostSilent if it does not
    answer in time, and ProtocolError for an answer that is none.
    """
    reply, attached = ask(channel, hello, seconds)
    if isinstance(reply, Welcome):
        return reply, attached
    _let_go(attached)
    raise ProtocolError(f"the shared host answered a hello with {type(reply).__name__}")


def ask(
    channel: Channel, request: Request, seconds: float, beside: bytes | Memory | None = None
) -> tuple[Reply, Attached | None]:
    """Send a request and wait for the answer; see ``greet`` for what is raised."""
    deadline = time.monotonic() + seconds
    try:
        # A host that sends somebody away closes the connection; what it said before is still there.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send_within(channel, seconds, encoder.encode(request), beside)
        received = receive_within(channel, deadline - time.monotonic(), REPLY_LIMIT)
    except TimeoutError:
        raise HostSilent(
            f"the shared host ({channel.peer.name}) did not answer in time; it may be stopped or very busy"
        ) from None
    if received is None:
        raise HostGone("the shared host ended the connection")
    data, attached = received
    try:
        reply = decode_reply(data)
    except msgspec.MsgspecError as error:
        _let_go(attached)
        raise ProtocolError(f"the shared host's answer cannot be read: {error}") from None
    if isinstance(reply, Refused):
        _let_go(attached)
        raise HostRefused(reply.reason, again=reply.again)
    return reply, attached


def ask_plainly(channel: Channel, request: Request, seconds: float, beside: bytes | None = None) -> Reply:
    """The same, where nothing beside the answer is wanted."""
    reply, attached = ask(channel, request, seconds, beside)
    _let_go(attached)
    return reply


def _let_go(attached: Attached | None) -> None:
    if attached is not None:
        attached.close()
