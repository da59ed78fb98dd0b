"""Where the shared host of a user and machine is found, who may be it, and how it is started.

Everything lies in one directory that nobody else may enter: ``host.lock`` decides who is the host (the kernel
releases it when that process ends, however it does), ``host.sock`` is where it listens, ``host.log`` has what it
said. The files themselves may be left behind: only the lock and the listener count.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import pwd
import stat
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import chain, repeat

from headrace.channel import unix
from headrace.channel.channel import Channel, Dial
from headrace.core import environment
from headrace.core.errors import HostUnavailable
from headrace.host.launch import Launch, host_command

BACKLOG = 128
LOCK, SOCKET, LOG = "host.lock", "host.sock", "host.log"

_COMMON = ("/tmp", "/dev/shm", "/var/tmp")
"""Directories in which everybody may make one."""
_LONGEST = 107
"""Bytes of a socket's path that the system takes."""
_LAST = 5.0
"""Seconds that a process which was killed may take to be gone."""
_REST = 0.2
"""Seconds before another start, where a host had the lock and does not listen: it is on its way out."""


def runtime_dir(*, create: bool = True) -> str:
    """The directory of this user's host: ``HEADRACE_RUNTIME_DIR``; else ``$XDG_RUNTIME_DIR/headrace`` or
    ``/tmp/headrace-<uid>``, or where others have taken those names, the next of ``_places``.

    Refused where others could meddle: it must be a directory (no link), ours, and closed to everybody else. All
    processes of the user look at the same places in the same order, so they meet. Without ``create`` it may be
    missing.
    """
    chosen = environment.runtime_dir()
    if chosen:
        return _checked(os.path.abspath(chosen), create)
    first: HostUnavailable | None = None
    for path in _places():
        try:
            found = _checked(path, create)
        except HostUnavailable as error:
            first = first or error
            continue
        if first is not None:
            warnings.warn(f"{found} is used instead: {first}", stacklevel=2)
        return found
    assert first is not None
    raise first


def runtime_dirs() -> list[str]:
    """All directories that are there and may be that of this user: whoever was started elsewhere (by a service, in
    a session) may have had another environment."""
    chosen = environment.runtime_dir()
    session = f"/run/user/{os.geteuid()}/headrace"
    found = []
    for path in dict.fromkeys([os.path.abspath(chosen)] if chosen else [*_places(), session]):
        with contextlib.suppress(HostUnavailable):
            if os.path.isdir(_checked(path, False)):
                found.append(path)
    return found


def _places() -> Iterator[str]:
    """Where the directory may be. Of the first ones others can take the name; of the last nobody can."""
    user = os.geteuid()
    session = environment.session_dir()
    # Under sudo, su and cron the variable is often that of another user, or of a session that has ended.
    with contextlib.suppress(OSError):
        if os.path.isabs(session) and os.stat(session).st_uid == user:
            yield os.path.join(session, "headrace")
    for directory in _COMMON:
        yield f"{directory}/headrace-{user}"
    with contextlib.suppress(KeyError, OSError):
        # Not from the environment, which differs between the ways to start a job. Several machines may have the
        # home directory in common.
        home, machine = pwd.getpwuid(user).pw_dir, os.uname().nodename
        if os.stat(home).st_uid == user:
            yield f"{home}/.headrace-{hashlib.sha256(machine.encode()).hexdigest()[:8]}"


def _checked(path: str, create: bool) -> str:
    """The directory, if it is safe."""
    check_length(os.path.join(path, SOCKET))
    if create:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        except OSError as error:
            raise _refused(path, f"cannot be made: {error.strerror}") from error
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        if create:
            raise _refused(path, "was removed as it was made") from None
        parent = os.path.dirname(path)
        if os.path.isdir(parent) and not os.access(parent, os.W_OK | os.X_OK):
            raise _refused(path, "cannot be made: Permission denied") from None
        return path
    except OSError as error:
        raise _refused(path, f"cannot be looked at: {error.strerror}") from error
    if stat.S_ISLNK(status.st_mode):
        raise _refused(path, "is a symbolic link")
    if not stat.S_ISDIR(status.st_mode):
        raise _refused(path, "is not a directory")
    if status.st_uid != os.geteuid():
        raise _refused(path, f"belongs to user {status.st_uid}, and this is user {os.geteuid()}")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise _refused(path, f"is open to others (mode {mode:o}); if they left nothing in it, chmod 700 it")
    return path


def check_length(path: str) -> None:
    """Whether a socket may have this path. Raises HostUnavailable."""
    if len(os.fsencode(path)) > _LONGEST:
        raise HostUnavailable(
            f"the path {path} is too long for a socket ({_LONGEST} bytes at most); set HEADRACE_RUNTIME_DIR to a "
            "shorter one"
        )


def _refused(path: str, why: str) -> HostUnavailable:
    return HostUnavailable(
        f"the directory of the shared host, {path}, {why}. Mend it, or set HEADRACE_RUNTIME_DIR to a directory "
        "of your own with mode 700."
    )


class Claimed:
    """This process is the host: it holds the lock and listens. See ``Listener``."""

    def __init__(self, lock: int, listener: unix.UnixListener) -> None:
        self._lock, self._listener = lock, listener
        self.path = listener.path
        """Where jobs connect."""
        self.fileno = listener.fileno
        self.accept = listener.accept
        self.in_place = listener.in_place
        """Not when somebody cleaned its directory away: then new jobs start another host, and this one should end
        once its own jobs have."""

    def close(self) -> None:
        """Stop listening and let another be the host. Those already connected stay so."""
        if self._lock < 0:
            return
        self._listener.close()
        os.close(self._lock)
        self._lock = -1


def claim() -> Claimed | None:
    """Become the host of this user and machine; None if there is one already.

    To be called before this process has threads: it sets the umask for a moment.
    """
    directory = runtime_dir()
    lock = _take_lock(os.path.join(directory, LOCK))
    if lock is None:
        return None
    path = os.path.join(directory, SOCKET)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of a host that was killed: we have the lock, so nobody listens there
        return Claimed(lock, unix.UnixListener(path, BACKLOG))
    except BaseException:
        os.close(lock)
        raise


def _take_lock(path: str) -> int | None:
    """A descriptor that holds the lock; None if another has it."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever cleans up temporary files may have removed it in between; then it locks nobody out.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.lstat(path)):
                    return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def connect(timeout: float = 5.0) -> unix.UnixChannel | None:
    """A channel to the host; None if there is no host.

    Raises HostUnavailable if the host is another user's, or too busy to take connections.
    """
    path = os.path.join(runtime_dir(create=False), SOCKET)
    try:
        return unix.connect(path, timeout)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except unix.OtherUser as error:
        raise HostUnavailable(
            f"{path} belongs to user {error.uid}; set HEADRACE_RUNTIME_DIR to a directory of your own"
        ) from None
    except TimeoutError:
        raise HostUnavailable(
            f"the shared host took no connection for {timeout:g} s; `headrace status` and "
            f"{os.path.join(os.path.dirname(path), LOG)} may tell why"
        ) from None


def dial() -> Dial:
    """How a job's workers reach the host that the job has found."""
    return functools.partial(unix.connect, os.path.join(runtime_dir(), SOCKET))


def depose(channel: Channel) -> bool:
    """End the host at the other end, which does not answer; whether it is gone.

    Only so do its lock and its memory become free, and the jobs that wait for it find another. One that cannot be
    ended (it is in another container) is left alone.
    """
    peer = channel.peer
    try:
        if not channel.end_peer(_LAST):
            return False
    except ConnectionResetError:
        return True
    warnings.warn(
        f"the shared host (pid {peer.pid}) did not answer for {environment.host_patience():g} s and was ended",
        stacklevel=2,
    )
    return True


def find_or_start(timeout: float = 20.0, *, command: Sequence[str] | None = None) -> unix.UnixChannel:
    """A channel to the host, which is started if there is none.

    Several jobs may do so at once: the lock lets one host live, and the others end quietly, with status 0. One
    that ends otherwise, or does not listen in time, is a HostUnavailable with what it wrote to its log. ``command``
    replaces the host that is started.
    """
    deadline = time.monotonic() + timeout
    channel = connect(timeout)
    while channel is None:
        directory = runtime_dir()
        launch = Launch(directory, os.path.join(directory, LOG), command or host_command())
        with contextlib.closing(launch):
            channel = _first_connection(launch, deadline)
        if channel is None:
            time.sleep(_REST)
            channel = connect(max(0.0, deadline - time.monotonic()))
    return channel


def _first_connection(launch: Launch, deadline: float) -> unix.UnixChannel | None:
    """A connection as soon as there is one; None if the new host made way for one that does not listen."""
    for pause in _pauses():
        status = launch.status()
        # In this order: if it has ended by now, whoever was faster listens.
        channel = connect(max(0.0, deadline - time.monotonic()))
        if channel is not None:
            return channel
        if status:
            raise HostUnavailable(f"the shared host ended as it started (status {status}). {launch.said()}")
        if time.monotonic() > deadline:
            raise HostUnavailable(f"the shared host did not start in time. {launch.said()}")
        if status == 0:
            break
        time.sleep(pause)
    return None


def _pauses() -> Iterator[float]:
    return chain((0.005, 0.01, 0.02), repeat(0.04))
