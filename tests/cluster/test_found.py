"""How a job finds the server of its node: whose that may be, and what is said where there is none."""

from __future__ import annotations

import os
import pwd
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.channel import wire
from headrace.cluster import found as found_module
from headrace.cluster import members as members_module
from headrace.cluster.found import find_members, socket_of
from headrace.cluster.members import Members
from headrace.cluster.server import NodeServer
from headrace.core.errors import HostUnavailable
from headrace.host import control, runtime
from tests.cluster.nodes import TOKEN, Servers, forget_members, write_photos

REPO = Path(__file__).resolve().parents[2]
PHOTOS = 24
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory, whose path is short."""
    with tempfile.TemporaryDirectory(prefix="hr-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setenv("HEADRACE_RUNTIME_DIR", f"{folder}/run")
        made = Path(runtime.runtime_dir())
        yield made
        forget_members()
        monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(made))
        if made.exists():
            made.chmod(0o700)
        control.stop()


@pytest.fixture
def photos(place: Path) -> Path:
    """Data that everybody may read."""
    folder = place.parent / "photos"
    folder.mkdir()
    write_photos(folder, PHOTOS)
    return folder


@pytest.fixture
def servers(place: Path) -> Iterator[Servers]:
    """Two nodes on this machine, where servers of Ray's would be."""
    made = Servers(place, count=0)
    for number in range(2):
        made.add(f"node-{number}" + "0" * 10)
    made.tell()
    yield made
    made.close()


JOB = """
import sys
sys.modules["ray"] = None
import headrace as hr

recipe = hr.Recipe(hr.folder(sys.argv[1], labels=None), hr.image.decode(), [hr.image.random_resized_crop(16)])
with hr.DataLoader(recipe, batch_size=8, num_workers=1) as loader:
    count = sum(len(images) for images in loader)
    pool = loader.stats().pool
    print(count, pool and pool.nodes, pool and pool.samples + pool.helped)
"""


def run(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    added = {"PYTHONPATH": f"{REPO / 'src'}:{REPO}", "HEADRACE_PROFILES": "0", **environment}
    return subprocess.run(command, env={**os.environ, **added}, capture_output=True, text=True, timeout=120)


def test_a_job_needs_no_ray_where_its_node_has_a_server(servers: Servers, photos: Path) -> None:
    ran = run(JOB, photos, HEADRACE_SHARE="ray")
    assert ran.stdout.split() == [str(PHOTOS), "2", str(PHOTOS)], ran.stderr
    assert servers.fetched == PHOTOS


def test_where_no_cluster_runs_it_is_said_what_to_do(
    place: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found_module, "_PATIENCE", 0.3)
    monkeypatch.setenv("HEADRACE_SHARE", "ray")
    recipe = hr.Recipe(hr.folder(photos, labels=None), hr.image.decode(), [hr.image.random_resized_crop(16)])
    with pytest.raises(HostUnavailable, match=r"HEADRACE_SHARE=ray: no node server.*headrace cluster start"):
        next(iter(hr.DataLoader(recipe, batch_size=8, num_workers=1)))
    assert find_members(must=False) is None


def test_a_server_of_another_version_says_so(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_module, "_PATIENCE", 0.3)
    monkeypatch.setattr(members_module, "PROTOCOL", 99_999)
    with pytest.raises(HostUnavailable, match=r"protocol 99999\); install one version on all nodes"):
        find_members(must=True)


def test_a_server_that_is_gone_is_passed_over(servers: Servers, place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(place / "node-0.sock"))
    first = find_members(must=True)
    assert first is not None and first[0] == servers.nodes["node-0" + "0" * 10].socket
    found_module.sweep()
    assert not (place / "node-0.sock").exists()


def test_a_server_that_starts_meanwhile_is_not_swept_away(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers of several nodes on one machine start at the same time, and each sweeps."""

    def chmod(path: str, mode: int, *, chmod: Any = os.chmod) -> None:
        chmod(path, mode)
        found_module.sweep()

    server = NodeServer("n", token="", memory=1 << 20, log=lambda said: None)
    path = found_module.socket_of("node-9" + "0" * 10)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(os, "chmod", chmod)
        server.listen_unix(path)
    try:
        found_module.sweep()
        assert [one.name for one in place.iterdir()] == [os.path.basename(path)]
        wire.connect_unix(path, 5.0).close()
    finally:
        server.close()


def test_servers_are_found_by_who_has_another_environment(
    servers: Servers, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is often started by a service, and jobs in a session, which has a directory of its own."""
    session = place.parent / "session"
    session.mkdir(mode=0o700)
    monkeypatch.delenv("HEADRACE_RUNTIME_DIR")
    monkeypatch.setattr(runtime, "_COMMON", (str(place.parent),))
    os.rename(place, place.parent / f"headrace-{os.geteuid()}")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    assert runtime.runtime_dir() == str(session / "headrace")
    found = find_members(must=True)
    assert found is not None and os.path.dirname(found[0]) == str(place.parent / f"headrace-{os.geteuid()}")


def test_a_directory_whose_path_is_too_long_for_a_server(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", f"{place}/{'x' * (95 - len(str(place)))}")
    runtime.runtime_dir(create=False)
    with pytest.raises(HostUnavailable, match=r"too long for a socket.*HEADRACE_RUNTIME_DIR"):
        socket_of("a" * 56)


# -- other users ----------------------------------------------------------------------------------------------


def as_nobody(act: Callable[[], object]) -> str:
    """What comes of it in a process of another user. (It is forked: that user may not be allowed to read Python.)"""
    user = pwd.getpwnam("nobody").pw_uid
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            try:
                said = str(act())
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode()[:60_000])
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


def epoch(photos: Path) -> tuple[int, bool]:
    """An epoch of a job; how many samples, and whether it had a cluster."""
    recipe = hr.Recipe(hr.folder(photos, labels=None), hr.image.decode(), [hr.image.random_resized_crop(16)])
    with hr.DataLoader(recipe, batch_size=8, num_workers=0) as loader:
        return sum(len(images) for images in loader), loader.stats().pool is not None


@ROOT
def test_another_user_is_told_that_the_directory_is_not_theirs(
    servers: Servers, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert epoch(photos) == (PHOTOS, False)
    monkeypatch.setenv("HEADRACE_SHARE", "ray")
    said = as_nobody(lambda: epoch(photos))
    assert said.startswith("HostUnavailable: ") and "belongs to user 0, and this is user " in said
    assert "belongs to user 0" in as_nobody(lambda: find_members(must=True))
    assert as_nobody(lambda: find_members(must=False)) == "None"
    monkeypatch.delenv("HEADRACE_SHARE")
    assert as_nobody(lambda: epoch(photos)) == f"({PHOTOS}, False)", "who does not ask for it works alone"
    assert servers.fetched == 0


@ROOT
def test_another_user_has_no_server_here(
    servers: Servers, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found_module, "_PATIENCE", 0.3)
    user = pwd.getpwnam("nobody").pw_uid
    own = photos.parent / "own"
    own.mkdir(mode=0o700)
    os.chown(own, user, user)
    monkeypatch.setenv("HEADRACE_RUNTIME_DIR", str(own))
    said = as_nobody(lambda: find_members(must=True))
    assert f"there is none of user {user}" in said and "headrace cluster start" in said


@ROOT
def test_another_user_gets_neither_the_token_nor_a_sample(servers: Servers, place: Path) -> None:
    path = servers.nodes["node-0" + "0" * 10].socket
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o700 and stat.S_IMODE(os.stat(path).st_mode) == 0o600

    def token() -> str:
        return Members(path).token

    assert as_nobody(token).startswith("PermissionError")
    # Not even where somebody has opened directory and socket to everybody.
    os.chmod(place, 0o755)
    os.chmod(path, 0o666)
    said = as_nobody(token)
    assert "belongs to user 0" in said and TOKEN not in said

    def careless() -> str:
        wire.check_user = lambda *_: None  # (who asks does not mind whose the server is; the server does)
        return token()

    said = as_nobody(careless)
    assert said.startswith(("EOFError", "ConnectionResetError", "BrokenPipeError")), said
    assert token() == TOKEN
