"""Indexes of archives: what is kept where, for how long it holds, and who may write it at the same time."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.core.errors import OptionError
from headrace.sources.archives import index_files
from headrace.sources.archives import open as opening
from headrace.sources.archives.alone import alone
from headrace.sources.archives.build import build
from headrace.sources.archives.index import Unreadable, decode
from headrace.sources.archives.windows import Stopped
from headrace.sources.storage import LocalStorage
from tests.descriptors import none_left_open
from tests.sources.archives.helpers import SIZE, image, members, write_shards, write_tar


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The archives that were read through."""
    seen: list[str] = []

    def counted(storage: Any, entry: Any, *rest: Any, **options: Any) -> Any:
        seen.append(os.path.basename(os.fsdecode(entry.what)))
        return build(storage, entry, *rest, **options)

    monkeypatch.setattr(opening, "build", counted)
    return seen


def cached() -> list[Path]:
    return sorted(Path(os.environ["XDG_CACHE_HOME"], "headrace").rglob("*.hridx"))


def test_an_archive_is_read_through_once(tmp_path: Path, scans: list[str]) -> None:
    write_shards(tmp_path)
    first = hr.shards(tmp_path)
    assert sorted(scans) == [f"train-{at:04d}.tar" for at in range(3)]
    assert len(list(tmp_path.glob("*.hridx"))) == 3 and not cached()
    again = hr.shards(tmp_path, image="jpg", target="json:label.id")
    other = hr.shards(tmp_path, layout="folder")
    assert len(scans) == 3, "whatever is asked of them"
    assert first.read_many(range(SIZE)) == again.read_many(range(SIZE))
    assert len(other) == SIZE
    assert not list(tmp_path.glob(".*")), "nothing else is left"


def test_an_archive_that_changes_is_read_again(tmp_path: Path, scans: list[str]) -> None:
    path = write_tar(tmp_path / "x.tar", members())
    hr.shards(path)
    os.utime(path, ns=(1, 1))
    hr.shards(path)
    assert scans == ["x.tar"] * 2
    write_tar(path, members(range(2, 5)))
    assert [bytes(one) for one in hr.shards(path).read_many(range(3))] == [image(at) for at in (2, 3, 4)]
    assert scans == ["x.tar"] * 3


def test_where_folders_cannot_be_written_to(
    tmp_path: Path, scans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path)
    real = index_files.tempfile.mkstemp

    def refused(suffix: bytes, prefix: bytes, folder: bytes) -> Any:
        if os.fsencode(tmp_path) == folder or nowhere:
            raise PermissionError(13, "not here")
        return real(suffix, prefix, folder)

    nowhere = False
    monkeypatch.setattr(index_files.tempfile, "mkstemp", refused)
    hr.shards(tmp_path)
    hr.shards(tmp_path)
    assert len(scans) == 3 and len(cached()) == 3 and not list(tmp_path.glob("*.hridx"))
    assert all(stat.S_IMODE(one.stat().st_mode) == 0o600 for one in cached())
    for one in cached():
        one.unlink()
    nowhere = True
    import pickle

    source = hr.shards(tmp_path)
    assert len(scans) == 6 and not cached()
    copy = pickle.loads(pickle.dumps(source))
    assert len(scans) == 6, "what could not be kept is sent along"
    assert copy.read_many(range(SIZE)) == source.read_many(range(SIZE))
    assert copy.fingerprint() == source.fingerprint()


def test_whoever_reads_an_archive_may_read_its_index(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", members())
    path.chmod(0o644)
    hr.shards(path)
    assert stat.S_IMODE((tmp_path / "x.tar.hridx").stat().st_mode) == 0o644


def test_what_is_sent_to_workers_is_little(tmp_path: Path) -> None:
    import pickle

    path = write_tar(tmp_path / "x.tar", [(f"{at:09d}.jpg", b"1") for at in range(2000)])
    assert len(pickle.dumps(hr.shards(path))) < 1000


def test_an_index_is_small(tmp_path: Path) -> None:
    items = [
        (f"{at:09d}.{ext}", data)
        for at in range(3000)
        for ext, data in (("jpg", b"x" * (at % 700)), ("cls", b"%d" % (at % 1000)))
    ]
    hr.shards(write_tar(tmp_path / "x.tar", items))
    assert (tmp_path / "x.tar.hridx").stat().st_size / 3000 < 40


def test_indexes_are_mapped_and_take_no_descriptors(tmp_path: Path) -> None:
    for shard in range(20):
        write_tar(tmp_path / f"{shard:02d}.tar", [(f"{at:050d}.jpg", b"%d" % at) for at in range(400)])
    hr.shards(tmp_path)
    with none_left_open():
        source = hr.shards(tmp_path)
    assert Path("/proc/self/maps").read_text().count(f"{tmp_path}/") == 20
    assert source.read_many([7999]) == [b"399"]
    del source
    assert f"{tmp_path}/" not in Path("/proc/self/maps").read_text()


def test_damage_is_found(tmp_path: Path, scans: list[str]) -> None:
    path = write_tar(tmp_path / "x.tar", members(range(2)))
    whole = hr.shards(path).read_many(range(2))
    index = tmp_path / "x.tar.hridx"
    data = index.read_bytes()
    damaged = [b"", data[:10], data[:-1], data + b"x", bytes(len(data)), b"HRSHARD9" + data[8:]]
    damaged += [data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :] for at in range(0, len(data), 7)]
    for number, content in enumerate(damaged, start=1):
        with pytest.raises(Unreadable):
            decode(content)
        if number % 8 == 1:
            index.write_bytes(content)
            before = len(scans)
            assert hr.shards(path).read_many(range(2)) == whole
            assert len(scans) == before + 1 and index.read_bytes() == data, "it was made again"


@given(
    data=st.lists(st.tuples(st.text("abc/", min_size=1, max_size=9), st.integers(0, 900)), max_size=20),
    number=st.integers(-(2**40), 2**40),
)
def test_an_index_is_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, data: list[tuple[str, int]], number: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "index.tar"
    items = [(f"{at}{key.strip('/')}.bin", bytes(size)) for at, (key, size) in enumerate(data)]
    items += [(name.replace(".bin", ".cls"), b"%d" % number) for name, _ in items]
    write_tar(path, items)
    (entry,) = LocalStorage().describe([os.fsencode(path)])
    assert not isinstance(entry, BaseException)
    made = build(LocalStorage(), entry, [], shown="x")
    found, version = decode(made.encode(entry.version))
    assert version == entry.version and found.exts == made.exts and len(found) == len(made)
    for name in found.ARRAYS:
        assert np.array_equal(getattr(found, name), getattr(made, name)), name
    assert found.columns.keys() == made.columns.keys()
    assert [found.name(at) for at in range(len(found.kinds))] == [
        made.name(at) for at in range(len(made.kinds))
    ]


# -- many at once ---------------------------------------------------------------------------------------------

_OPENS = """
import sys
import headrace as hr
for _ in range(int(sys.argv[2])):
    source = hr.shards(sys.argv[1])
    assert [len(one) for one in source.read_many(range(len(source)))] == eval(sys.argv[3])
    print("read", flush=True)
    if len(sys.argv) > 4:
        import glob, os
        for path in glob.glob(sys.argv[1] + "/*.hridx"):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
"""


def _start(root: Path, rounds: int, *more: str) -> subprocess.Popen[bytes]:
    sizes = repr([len(image(at)) for at in range(SIZE)])
    command = [sys.executable, "-c", _OPENS, str(root), str(rounds), sizes, *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def test_processes_that_make_and_delete_the_same_indexes(tmp_path: Path) -> None:
    write_shards(tmp_path)
    running = [_start(tmp_path, 25, "delete") for _ in range(3)]
    assert [one.communicate()[0].count(b"read") for one in running] == [25] * 3
    assert [one.returncode for one in running] == [0] * 3
    assert not [one for one in tmp_path.iterdir() if one.name.endswith(".partial")]


def test_of_several_at_once_one_reads_an_archive(tmp_path: Path, scans: list[str]) -> None:
    """As the ranks of a job do. (Threads of one process are held off from each other, too.)"""
    write_shards(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: hr.shards(tmp_path), range(4)))
    assert sorted(scans) == [f"train-{at:04d}.tar" for at in range(3)]
    assert all(one.read_many(range(SIZE)) == found[0].read_many(range(SIZE)) for one in found)
    assert not list(Path(os.environ["XDG_CACHE_HOME"], "headrace").rglob("*.lock"))


def test_who_waits_for_another_can_be_stopped(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "x.lock")
    with alone(path), pytest.raises(Stopped), alone(path, lambda: True):
        pytest.fail("the other has it")
    with alone(path, lambda: True):
        pass
    (tmp_path / "file").write_bytes(b"")
    with alone(os.fsencode(tmp_path / "file" / "x.lock")):
        pass  # where there can be no lock, nobody is held off


@pytest.mark.faults
def test_killed_while_indexes_are_written(tmp_path: Path) -> None:
    """Whatever is left behind, nobody reads a wrong index."""
    write_shards(tmp_path)
    for number in range(6):
        running = _start(tmp_path, 1000, "delete")
        assert running.stdout is not None
        for _ in range(number + 1):
            running.stdout.readline()
        time.sleep(0.001 * number)
        running.send_signal(signal.SIGKILL)
        running.wait()
        running.stdout.close()
        source = hr.shards(tmp_path)
        assert [bytes(one) for one in source.read_many(range(SIZE))] == [image(at) for at in range(SIZE)]


def test_an_archive_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tar(tmp_path / "x.tar", members())

    def changing(*given: Any, **options: Any) -> Any:
        made = build(*given, **options)
        os.utime(path, ns=(9, 9))
        return made

    monkeypatch.setattr(opening, "build", changing)
    with pytest.raises(OptionError, match=r"x.tar' was changed while it was read"):
        hr.shards(path)
    assert not (tmp_path / "x.tar.hridx").exists()


# -- waiting for it -------------------------------------------------------------------------------------------


def test_ctrl_c_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path)
    begun = threading.Event()

    class Slow(LocalStorage):
        def read(self, locations: Any) -> Any:
            begun.set()
            time.sleep(0.02)
            return super().read([type(one)(one.what, one.version, one.start, 512) for one in locations])

    storage = Slow()
    entries = [one for block in storage.below(os.fsencode(tmp_path)) for one in block]

    def interrupt() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        opening.open_indexes(storage, entries, [])
    assert not [one for one in threading.enumerate() if one.name.startswith("headrace-index")]
    assert not list(tmp_path.glob(".*"))


def test_there_is_a_bar_when_it_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path)
    shown: list[tuple[str, float]] = []

    class Bar:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def __enter__(self) -> Callable[[str, float], None]:
            return lambda what, share: shown.append((what, share))

        def __exit__(self, *_: Any) -> None: ...

    monkeypatch.setattr(opening, "Bar", Bar)
    monkeypatch.setattr(opening, "_SOON", 1e9)
    hr.shards(tmp_path)
    assert not shown
    monkeypatch.setattr(opening, "_SOON", -1.0)
    hr.shards(tmp_path)
    assert shown[-1] == ("3 of 3", 1.0)
