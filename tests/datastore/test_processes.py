"""Several processes at one store: who waits, who fetches, and that the dead hold nothing."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.datastore import DataError, Store, evict, overview
from headrace.datastore.room import Removal
from headrace.datastore.tokens import Tokens
from headrace.datastore.urls import file_name, good_name, normal_url, public_url
from tests.datastore.archives import read_tree, some_files, tar
from tests.datastore.looks import check_still
from tests.datastore.server import Web

REPO = Path(__file__).parents[2]
PART = 64 << 10
FETCH = """
import sys
from headrace.datastore import Store
with Store(sys.argv[1], part=64 << 10) as store:
    print(store.add("some", [sys.argv[2]]), flush=True)
"""
HOLD = """
import os, sys
import headrace as hr
print(hr.stored("some"), flush=True)
if len(sys.argv) > 1 and os.fork():
    os._exit(0)
sys.stdin.read()
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=REPO,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_of_two_that_add_the_same_one_fetches_and_the_other_waits(root: Path, server: Web) -> None:
    server.files["some.tar"] = data = tar(some_files(64, 16_000))
    server.gate, server.free = threading.Event(), 4 * PART
    both = [python(FETCH, str(root), server.url("some.tar")) for _ in range(2)]
    with Store(root) as store:
        for _ in range(600):
            if overview(store).datasets and len(overview(store).datasets[0].pids) == 2:
                break
            threading.Event().wait(0.05)
        assert sorted(overview(store).datasets[0].pids) == sorted(one.pid for one in both)
        assert overview(store).datasets[0].state == "coming"
    server.gate.set()
    for one in both:
        said, _ = one.communicate(timeout=60)
        assert one.returncode == 0 and read_tree(Path(said.strip())) == some_files(64, 16_000)
    assert server.sent < len(data) + 8192  # once, and looks at what it is
    check_still(root)


def test_what_a_killed_process_had_fetched_is_gone_on_with(root: Path, server: Web) -> None:
    server.files["some.tar"] = data = tar(some_files(64, 16_000))
    server.gate, server.free = threading.Event(), 9 * PART
    one = python(FETCH, str(root), server.url("some.tar"))
    log = None
    for _ in range(600):
        log = next(root.glob("incoming/*/parts.log"), None)
        if log is not None and log.stat().st_size >= 5 * 40:
            break
        threading.Event().wait(0.05)
    assert log is not None
    one.kill()
    one.communicate()
    had = log.stat().st_size // 40 - 1
    assert had >= 4
    server.gate.set()
    with Store(root, part=PART) as store:
        assert overview(store).datasets[0].state == "interrupted"
        before = len(server.log)
        assert read_tree(store.use("some")) == some_files(64, 16_000)
        # (a set: what the one that was killed had asked for may be read from its connection only now)
        asked = {span for _, span in server.log[before:] if span != "bytes=0-0"}
        assert len(asked) == -(-len(data) // PART) - had
    check_still(root)


def test_what_another_was_fetching_when_it_died_is_fetched_after_the_rest(root: Path, server: Web) -> None:
    server.files.update({"large": os.urandom(1 << 20), "small": os.urandom(10_000)})
    server.pause = 0.05
    one = python(FETCH, str(root), server.url("large"))
    with Store(root, part=PART) as store:
        for _ in range(600):
            if overview(store).incoming:
                break
            threading.Event().wait(0.01)
        one.send_signal(signal.SIGSTOP)
        found: list[Path] = []
        urls = [server.url("small"), server.url("large")]
        adding = threading.Thread(target=lambda: found.append(store.add("both", urls)))
        adding.start()
        small = hashlib.sha256(server.files["small"]).hexdigest()
        for _ in range(600):
            if any(root.rglob(f"{small}.raw")):
                break
            threading.Event().wait(0.01)
        assert any(root.rglob(f"{small}.raw")) and adding.is_alive(), "the other has the rest"
        server.pause = 0.0
        one.kill()
        one.communicate()
        adding.join(60)
        assert found and read_tree(found[0]) == server.files
    check_still(root)


def test_nothing_is_written_before_what_goes_for_it_has_gone(root: Path, server: Web) -> None:
    """Also where somebody else deletes it."""
    server.files.update({"old": os.urandom(300_000), "new": os.urandom(300_000)})
    with Store(root, quota="400KiB", cooldown=0) as other:
        other.add("old", [server.url("old")])
        with other.keeper.books.change() as books:  # it has begun to delete it
            books.execute("UPDATE content SET going = ?", (other.keeper.tokens.own,))
            (row,) = books.execute("SELECT key FROM content").fetchall()

        def add() -> None:
            with Store(root, quota="400KiB", cooldown=0) as store:
                store.add("new", [server.url("new")])

        adding = threading.Thread(target=add)
        adding.start()
        for _ in range(600):
            if overview(other).incoming:
                break
            threading.Event().wait(0.05)
        threading.Event().wait(0.3)
        assert overview(other).incoming and not list(root.glob("incoming/*"))
        other.keeper.remove(Removal([row["key"]], []))
        adding.join()
        assert {one.name: one.state for one in overview(other).datasets} == {"new": "here", "old": "evicted"}
    check_still(root, 400 << 10)


@pytest.mark.parametrize("fork", [False, True])
def test_a_lease_lives_as_long_as_its_processes(fork: bool, root: Path, server: Web) -> None:
    server.files["some.tar"] = tar(some_files())
    with Store(root) as store:
        store.add("some", [server.url("some.tar")])
    one = python(HOLD, *["fork"] * fork)
    assert one.stdout is not None and one.stdout.readline().strip() == str(root / "datasets" / "some")
    if fork:
        one.wait()  # its child has the lease now
    with Store(root) as store:
        with pytest.raises(DataError, match=f"in use, by process {one.pid}"):
            evict(store, "some")
        if fork:
            one.communicate("")  # the child reads the end of its input, and ends
        else:
            one.send_signal(signal.SIGKILL)
            one.communicate()
        for _ in range(200):
            if not overview(store).datasets[0].pids:
                break
            threading.Event().wait(0.05)
        assert evict(store, "some") > 0
    check_still(root)


def test_tokens_live_and_die(tmp_path: Path) -> None:
    one, two = Tokens(tmp_path / "tokens"), Tokens(tmp_path / "tokens")
    assert one.own != two.own
    assert one.lives(one.own) and one.lives(two.own) and two.lives(one.own)
    assert not one.lives(12345) and not one.lives(0)
    two.close()
    assert not one.lives(two.own)
    one.close()
    assert (tmp_path / "tokens").stat().st_size == 0


def test_books_of_another_version_are_refused(root: Path) -> None:
    with Store(root) as store, store.keeper.books.change() as books:
        books.execute("PRAGMA user_version = 99")
    with Store(root) as store, pytest.raises(DataError, match="another version of headrace"):
        overview(store)


def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="set HEADRACE_DATA"):
        Store(tmp_path / "file" / "store")


def test_urls_are_shown_without_secrets() -> None:
    for url, shown in {
        "https://u:p@host:80/a%20b.zip?sig=1&se=2&x=3#part": "https://host:80/a%20b.zip?x=3",
        "s3://bucket/key": "s3://bucket/key",
        "/a/path?sig=1": "/a/path?sig=1",
        "https://host/a?access_token=t": "https://host/a",
        "https://host/a?b=%2F&c": "https://host/a?b=%2F&c",
    }.items():
        assert public_url(url) == shown
    assert file_name("https://host/a%20b.zip?x=3") == "a b.zip" and file_name("https://host/") == "data"
    assert normal_url("file:///a/b%20c") == "/a/b c" and normal_url("https://h/a#b") == "https://h/a"
    assert good_name("imagenet-1k_v2.0") and not any(
        map(good_name, ("", ".x", "a/b", "a b", "-x", "x" * 200))
    )
