"""Which errors of reading say that storage cannot give a sample just now, and which that the sample is at fault."""

from __future__ import annotations

import errno

from headrace.core.errors import NotNow

_NOT_NOW = frozenset(
    (
        errno.EAGAIN,
        errno.EINTR,
        errno.ETIMEDOUT,
        errno.ESTALE,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENETRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENOTCONN,
        errno.ESHUTDOWN,
    )
)
"""What file systems over a network report while their server is away: of no local file, and of no path."""


def not_now(error: BaseException) -> bool:
    """Whether storage is at fault, and may give the sample later.

    Anything else is the sample's own: a path that leads nowhere stays one.
    """
    if isinstance(error, NotNow | TimeoutError | ConnectionResetError | ConnectionAbortedError):
        return True
    return isinstance(error, OSError) and error.errno in _NOT_NOW


def doubtful(error: BaseException) -> bool:
    """Whether it may be the one or the other: a broken sector reads as EIO, but so does a server that was lost."""
    return isinstance(error, OSError) and error.errno == errno.EIO
