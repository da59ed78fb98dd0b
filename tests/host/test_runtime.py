"""Where the host is found, that there is one of it, and how it is started: with real processes and sockets."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from headrace.channel.channel import receive_within
from headrace.channel.unix import UnixChannel, close_all, make_socket
from headrace.core.errors import HeadraceError, HostUnavailable
from headrace.host import launch, runtime
from tests.descriptors import none_left_open
from tests.loader.helpers import wait_until

STANDIN = [sys.executable, str(Path(__file__).with_name("standin.py"))]
NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")


def python(code: str) -> list[str]:
    """A command that runs this instead of a host."""
    return [sys.executable, "-c", textwrap.dedent(code)]


@contextmanager
def claim() -> Iterator[runtime.Claimed]:
    """Be the host for a while."""
    claimed = runtime.claim()
    assert claimed is not None
    with closing(claimed):
        yield claimed


def connect(timeout: float = 5.0) -> UnixChannel:
    """A channel to the host that must be there."""
    channel = runtime.connect(timeout)
    assert channel is not None
    return channel


def as_nobody(action: Any) -> int:
    """Run something in a child process that belongs to another user; its exit status."""
    pid = os.fork()
    if not pid:
        status = 99
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            status = action() or 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def gone(pid: int) -> bool:
    """Whether a process has ended with all its threads: only then are its files closed. Its new parent may be slow
    to reap it."""
    try:
        threads = len(os.listdir(f"/proc/{pid}/task"))
        return bool(threads <= 1 and psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return True


# -- the directory --------------------------------------------------------------------------------------------


def test_the_directory_is_made_for_us_alone(place: Path) -> None:
    mask = os.umask(0)
    try:
        assert runtime.runtime_dir() == str(place)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert runtime.runtime_dir() == str(place)


def test_where_the_directory_lies(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    assert runtime.runtime_dir(create=False) == str(place)
    monkeypatch.delenv("HEADRACE_RUNTIME_DIR")
    assert runtime.runtime_dir(create=False) == f"{place}/headrace"
    for useless in ("", "relative", str(place / "missing")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", useless)
        assert next(runtime._places()) == f"/tmp/headrace-{os.geteuid()}"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert next(runtime._places()) == f"/tmp/headrace-{os.geteuid()}"


@as_root
def test_the_session_of_another_user_is_passed_by(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(0o700)
    os.chown(place, NOBODY, NOBODY)
    monkeypatch.delenv("HEADRACE_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    assert next(runtime._places()) == f"/tmp/headrace-{os.geteuid()}"


def test_a_relative_directory_is_that_of_this_process(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.parent)
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", "run")
    with closing(runtime.find_or_start(command=STANDIN)):
        assert (place / "host.sock").is_socket()


def refuse(what: str) -> None:
    """Nobody uses this directory, neither to find a host nor to be one."""
    for use in (
        runtime.runtime_dir,
        runtime.claim,
        runtime.connect,
        lambda: runtime.find_or_start(command=STANDIN),
    ):
        with pytest.raises(HeadraceError, match=what) as caught:
            use()
        assert "HEADRACE_RUNTIME_DIR" in str(caught.value)


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o755, 0o777, 0o1777])
def test_a_directory_open_to_others_is_refused(place: Path, mode: int) -> None:
    place.mkdir()
    place.chmod(mode)
    refuse(f"open to others.*{mode:o}.*chmod 700")


def test_a_link_is_refused(place: Path) -> None:
    target = place.with_name("target")
    target.mkdir(0o700)
    place.symlink_to(target)
    refuse("symbolic link")
    assert not list(target.iterdir())


def test_what_is_no_directory_is_refused(place: Path) -> None:
    place.touch(0o600)
    refuse("not a directory")


@as_root
def test_a_directory_of_somebody_else_is_refused(place: Path) -> None:
    place.mkdir(0o700)
    os.chown(place, NOBODY, NOBODY)
    refuse(f"belongs to user {NOBODY}")


def take_name(path: Path, how: str) -> None:
    """Be there first, in a way that makes a directory of no use."""
    if how == "link":
        path.symlink_to(path.parent)
    elif how == "file":
        path.touch(0o600)
    else:
        path.mkdir(0o777 if how == "open" else 0o700)
        path.chmod(0o777 if how == "open" else 0o700)
        if how == "another's":
            os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize("how", ["link", "file", "open", pytest.param("another's", marks=as_root)])
def test_names_that_others_took_first_stop_nobody(
    place: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """All of the user's processes meet in the first directory that is safe."""
    commons = [place.parent / name for name in ("one", "two", "three")]
    for directory in commons:
        directory.mkdir()
    home = place.parent / "home"
    home.mkdir()
    monkeypatch.setattr(runtime, "_COMMON", tuple(map(str, commons)))
    monkeypatch.setattr(runtime.pwd, "getpwuid", lambda _: SimpleNamespace(pw_dir=str(home)))
    monkeypatch.delenv("HEADRACE_RUNTIME_DIR")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    name = f"headrace-{os.geteuid()}"
    assert runtime.runtime_dir(create=False) == str(commons[0] / name)
    for taken, directory in enumerate(commons):
        take_name(directory / name, how)
        found = None
        for create in (False, True, False):
            with pytest.warns(UserWarning, match=f"is used instead.*{directory.parent}/one"):
                found = runtime.runtime_dir(create=create)
        assert found is not None and stat.S_IMODE(os.lstat(found).st_mode) == 0o700
        if taken < 2:
            assert found == str(commons[taken + 1] / name)
            os.rmdir(found)
    assert found is not None and found.startswith(f"{home}/.headrace-")
    with pytest.warns(UserWarning, match="is used instead"), claim(), closing(connect()):
        pass


def test_a_directory_that_cannot_be_made(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.touch()
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(place / "below"))
    with pytest.raises(HostUnavailable, match="HEADRACE_RUNTIME_DIR"):
        runtime.runtime_dir()


def test_paths_up_to_the_systems_limit_work_and_longer_ones_are_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = str(place.parent / ("x" * 200))[: 107 - len("/host.sock")]
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", longest)
    with claim(), closing(connect()):
        pass
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", longest + "y")
    refuse("too long")
    assert not os.path.exists(longest + "y")


# -- who is the host ------------------------------------------------------------------------------------------


def test_there_is_one_host(place: Path) -> None:
    first = runtime.claim()
    assert first is not None
    assert runtime.claim() is None
    first.close()
    assert not (place / "host.sock").exists()
    assert runtime.connect() is None
    second = runtime.claim()
    assert second is not None
    second.close()
    second.close()


def test_the_socket_is_ours_alone_and_the_umask_is_as_before(place: Path) -> None:
    mask = os.umask(0o022)
    try:
        with claim():
            assert stat.S_IMODE((place / "host.sock").stat().st_mode) == 0o600
            assert stat.S_IMODE((place / "host.lock").stat().st_mode) == 0o600
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(mask)


def test_nobody_there(place: Path) -> None:
    assert runtime.connect() is None
    assert not place.exists()
    runtime.runtime_dir()
    assert runtime.connect() is None


def test_a_connection_carries_messages_both_ways(place: Path) -> None:
    with claim() as claimed:
        assert claimed.accept() is None
        client = connect()
        server = claimed.accept()
        assert server is not None
        with closing(client), closing(server):
            assert server.peer.pid == client.peer.pid == os.getpid()
            client.send(b"hello")
            assert server.receive() == (b"hello", None)
            claimed.close()
            server.send(b"still here")
            assert client.receive() == (b"still here", None)


def test_a_claim_leaves_no_descriptor(place: Path) -> None:
    runtime.runtime_dir()
    with none_left_open():
        for _ in range(3):
            with claim():
                assert runtime.claim() is None
        assert runtime.connect() is None


def test_a_lock_that_is_cleaned_away_as_it_is_taken_is_taken_anew(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on a file that nobody finds any more would let a second host in."""
    tries, lock = [], fcntl.flock

    def flock(fd: int, how: int) -> None:
        tries.append(fd)
        if len(tries) == 1:
            (place / "host.lock").unlink()
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with claim():
        assert len(tries) == 2
        assert runtime.claim() is None


def test_a_host_whose_files_were_cleaned_away_notices(place: Path) -> None:
    with claim() as old:
        assert old.in_place()
        for file in place.iterdir():
            file.unlink()
        assert not old.in_place()
        with claim() as new:
            assert new.in_place() and not old.in_place()
            old.close()  # must not take the other's socket with it
            assert new.in_place()
            with closing(connect()):
                pass


def test_a_host_that_takes_no_connections(place: Path) -> None:
    waiting = []
    with claim():
        with pytest.raises(HostUnavailable, match="took no connection"):
            for _ in range(runtime.BACKLOG + 2):
                waiting.append(connect(0.05))  # noqa: PERF401
        assert len(waiting) >= runtime.BACKLOG
    for channel in waiting:
        channel.close()


@as_root
def test_another_user_is_turned_away(place: Path) -> None:
    with claim() as claimed:
        for path in (place.parent, place, place / "host.sock"):
            path.chmod(0o777)

        def knock() -> int:
            with make_socket() as sock:
                sock.connect(claimed.path)
                return 7

        assert as_nobody(knock) == 7
        assert claimed.accept() is None
        place.chmod(0o700)
        with closing(connect()):
            assert claimed.accept() is not None


@as_root
def test_the_host_of_another_user_is_not_believed(place: Path) -> None:
    runtime.runtime_dir()
    listening, told = os.pipe()
    over, end = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(end)
            with make_socket() as sock:
                sock.bind(str(place / "host.sock"))
                os.setuid(NOBODY)
                sock.listen()
                os.write(told, b"x")
                os.read(over, 1)
        finally:
            os._exit(0)
    try:
        os.read(listening, 1)
        with pytest.raises(HostUnavailable, match=f"user {NOBODY}"):
            runtime.connect()
    finally:
        os.close(end)
        os.waitpid(pid, 0)
        close_all([listening, told, over])


# -- starting it ----------------------------------------------------------------------------------------------


def test_several_starters_get_one_host(place: Path) -> None:
    barrier = threading.Barrier(4)

    def start(_: int) -> UnixChannel:
        barrier.wait()
        return runtime.find_or_start(command=STANDIN)

    with ThreadPoolExecutor(4) as pool:
        connections = list(pool.map(start, range(4)))
    hosts = {channel.peer.pid for channel in connections}
    assert len(hosts) == 1
    with closing(runtime.find_or_start(command=["/nothing/is/started"])) as another:
        assert another.peer.pid in hosts
    assert (place / "host.log").read_text().count("listening") == 1
    for channel in connections:
        channel.close()


@pytest.mark.faults
def test_after_a_kill_the_next_host_takes_its_place(place: Path) -> None:
    with closing(runtime.find_or_start(command=STANDIN)) as channel:
        first = channel.peer.pid
        os.kill(first, signal.SIGKILL)
        assert receive_within(channel, 20) is None
    assert wait_until(lambda: gone(first))
    assert (place / "host.sock").exists()
    assert runtime.connect() is None
    with closing(runtime.find_or_start(command=STANDIN)) as channel:
        second = channel.peer.pid
        assert second != first
        assert runtime.claim() is None
        os.kill(second, signal.SIGKILL)
        assert receive_within(channel, 20) is None
    assert wait_until(lambda: gone(second))
    with claim(), closing(connect()):
        pass


def test_the_host_is_on_its_own(place: Path) -> None:
    """No child of the job, no zombie in it, none of its descriptors; a session of its own, and the root directory."""
    me = psutil.Process()
    children = {child.pid for child in me.children()}
    place.mkdir(0o700)
    with (place / "inherited").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        channel = runtime.find_or_start(command=STANDIN)
    with closing(channel):
        host = channel.peer.pid
        assert {child.pid for child in me.children(recursive=True)} == children
        assert psutil.Process(host).ppid() != os.getpid()
        assert os.getsid(host) not in (os.getsid(0), host)
        assert os.readlink(f"/proc/{host}/cwd") == "/"
        opened = {int(fd): os.readlink(f"/proc/{host}/fd/{fd}") for fd in os.listdir(f"/proc/{host}/fd")}
        assert opened[0] == "/dev/null"
        assert opened[1] == opened[2] == str(place / "host.log")
        assert str(place / "inherited") not in opened.values()
        assert not any("pipe:" in target for target in opened.values())
    assert stat.S_IMODE((place / "host.log").stat().st_mode) == 0o600


def test_the_host_ignores_no_signal_because_its_job_did(place: Path) -> None:
    code = f"""
    import signal
    from headrace.host import runtime
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGUSR1])
    print(runtime.find_or_start(command={STANDIN!r}).peer.pid)
    """
    host = int(subprocess.run(python(code), capture_output=True, check=True, timeout=60).stdout)
    # The job has ended, and the host lives on.
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{host}/status").read_text().splitlines())
    assert int(status["SigBlk"], 16) == 0
    assert not int(status["SigIgn"], 16) & (1 << (signal.SIGHUP - 1) | 1 << (signal.SIGTERM - 1))
    os.kill(host, signal.SIGTERM)
    assert wait_until(lambda: gone(host))


@pytest.mark.faults
def test_a_job_that_is_killed_while_it_starts_a_host_leaves_no_starter(place: Path) -> None:
    slow = python(f"import time, runpy; time.sleep(1); runpy.run_path({STANDIN[1]!r}, run_name='__main__')")
    code = f"from headrace.host import runtime; runtime.find_or_start(command={slow!r})"
    job = subprocess.Popen(python(code))
    log = place / "host.log"
    assert wait_until(log.exists)
    starter = next(iter(wait_for_children(job.pid)))
    job.kill()
    job.wait()
    assert wait_until(lambda: gone(starter))
    assert wait_until(lambda: "listening" in log.read_text())


def wait_for_children(pid: int) -> list[int]:
    """Children of a process, once there are any."""
    found: list[int] = []

    def look() -> bool:
        found[:] = [child.pid for child in psutil.Process(pid).children()]
        return bool(found)

    assert wait_until(look)
    return found


def test_a_host_that_fails_is_reported_with_what_it_said(place: Path) -> None:
    place.mkdir(0o700)
    (place / "host.log").write_text("of old\n" * 50)
    command = python("import sys; print('\\n'.join(map(str, range(100)))); sys.exit('no memory for this')")
    with pytest.raises(HostUnavailable, match=r"status 1\)") as caught:
        runtime.find_or_start(command=command)
    message = str(caught.value)
    assert message.endswith("no memory for this")
    assert "\n  99\n" in message and "\n  11\n" not in message and "of old" not in message
    assert str(place / "host.log") in message


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (python("import os; os.kill(os.getpid(), 9)"), r"status 137\). It wrote nothing"),
        (["/no/such/program"], "FileNotFoundError"),
    ],
)
def test_hosts_that_end_in_other_ways(place: Path, command: list[str], what: str) -> None:
    with none_left_open(), pytest.raises(HostUnavailable, match=what):
        runtime.find_or_start(command=command)


def test_a_host_that_does_not_listen_in_time(place: Path) -> None:
    with pytest.raises(HostUnavailable, match=r"in time.*\n  (?s:.*)thinking"):
        runtime.find_or_start(
            2.0, command=python("import time; print('thinking', flush=True); time.sleep(10)")
        )


def test_a_host_on_its_way_out_is_waited_for(place: Path) -> None:
    """It still has the lock and does not listen any more: new ones make way, until one finds the lock free."""
    lock = runtime._take_lock(os.path.join(runtime.runtime_dir(), runtime.LOCK))
    assert lock is not None
    log = place / "host.log"
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(runtime.find_or_start, 60.0, command=STANDIN)
        try:
            assert wait_until(lambda: log.exists() and "made way" in log.read_text())
        finally:
            os.close(lock)
        with closing(found.result(60)) as channel:
            assert f"listening {channel.peer.pid}" in log.read_text()


def test_a_long_log_is_begun_anew(place: Path) -> None:
    place.mkdir(0o700)
    log = place / "host.log"
    log.write_text("x" * (1 << 20))
    with closing(runtime.find_or_start(command=STANDIN)) as channel:
        assert log.stat().st_size > 1 << 20
        host = channel.peer.pid
        os.kill(host, signal.SIGKILL)
        assert receive_within(channel, 20) is None
    assert wait_until(lambda: gone(host))
    with closing(runtime.find_or_start(command=STANDIN)):
        assert log.stat().st_size < 100


def test_the_host_finds_headrace_where_the_job_did(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "beside_the_job.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "lib")
    monkeypatch.setenv("HEADRACE_HOST_IDLE", "7")
    command = python(
        f"""
        import os, runpy, headrace, beside_the_job
        assert os.environ["HEADRACE_HOST_IDLE"] == "7"
        runpy.run_path({STANDIN[1]!r}, run_name="__main__")
        """
    )
    runtime.find_or_start(command=command).close()


def test_the_host_finds_what_headrace_needs_where_the_job_did(place: Path) -> None:
    """A job may have put directories onto its path by itself, and its Python may have no packages of its own."""
    code = f"""
    import sys
    sys.path[1:1] = {[path for path in sys.path if path]!r}
    from headrace.host import runtime
    runtime.find_or_start().close()
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    bare = getattr(
        sys, "_base_executable", sys.executable
    )  # (that of the virtual environment, if there is one)
    subprocess.run([bare, "-c", textwrap.dedent(code)], env=environment, check=True, timeout=60)
    assert runtime.connect(1.0) is not None


def test_what_is_started_by_default() -> None:
    assert launch.host_command()[0] == sys.executable
    assert launch.host_command()[-2:] == ["-m", "headrace.host.service"]
