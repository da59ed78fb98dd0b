"""The first words of a client, as those who listen judge them."""

from __future__ import annotations

import hmac
import time

from headrace.channel.wire import Wire
from headrace.cluster.messages import PROTOCOL, Hello, decode_request
from headrace.core.errors import ProtocolError
from headrace.core.version import __version__

GREETING = 5.0
"""Seconds for each of the first words between two ends: that one is there, who it is, and whether it is taken in."""
_LIMIT = 4096


def refusal(connection: Wire, token: str | None) -> str:
    """Hear a client's hello; why it is sent away, or nothing. ``token``: what it has to show; None: nothing.

    Raises ProtocolError for what is no hello.
    """
    until = time.monotonic() + GREETING

    def left() -> float:
        """Each byte may be waited for as long as any; who sends one at a time is not waited for over and over."""
        if time.monotonic() >= until:
            raise TimeoutError(f"{connection.name} did not say who it is for {GREETING:g} s")
        return until - time.monotonic()

    connection.meanwhile = left
    try:
        hello = decode_request(connection.receive(seconds=GREETING, limit=_LIMIT)[0])
    finally:
        connection.meanwhile = None
    if not isinstance(hello, Hello):
        raise ProtocolError("a connection begins with a hello")
    if token is not None and not hmac.compare_digest(hello.token.encode(), token.encode()):
        return "the token is not that of this cluster"
    if hello.protocol != PROTOCOL:
        return (
            f"this node is of headrace {__version__} (protocol {PROTOCOL}) and the other end of "
            f"{hello.version or '?'} (protocol {hello.protocol}); install one version on all nodes and restart the "
            "cluster: headrace cluster stop, headrace cluster start"
        )
    return ""
