"""Memory that runs out: said at the start and with advice, or met quietly; never a bus error."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headrace as hr
from headrace.core import memory
from tests.faults.helpers import Job, recipe
from tests.loader.helpers import counting, drain, flat, targets

V1 = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def small(tmp_path):
    """A function that mounts a tmpfs of so many bytes."""
    mounted = []

    def mount(nbytes):
        where = tmp_path / f"tmpfs-{len(mounted)}"
        where.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={nbytes}", "headrace-test", str(where)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"no right to mount a tmpfs: {done.stderr.strip()}")
        mounted.append(where)
        return where

    yield mount
    for where in mounted:
        subprocess.run(["umount", "-l", str(where)], check=True)


def fill(folder):
    """Take up all room of a file system. Workers that find none give back what they had taken: that, too."""
    file = os.open(folder / "filler", os.O_WRONLY | os.O_CREAT)
    try:
        for _ in range(1000):
            with contextlib.suppress(OSError):
                while os.write(file, bytes(4096)):
                    pass
            if not os.statvfs(folder).f_bavail:
                return
        raise AssertionError("it does not fill up")
    finally:
        os.close(file)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_full_directory_is_an_error_with_advice_at_the_start(small, monkeypatch, num_workers):
    where = small(4 << 20)
    fill(where)
    monkeypatch.setenv("HEADRACE_SHM_DIR", str(where))
    with (
        hr.DataLoader(recipe(100), batch_size=8, num_workers=num_workers) as loader,
        pytest.raises(hr.OutOfSharedMemory) as caught,
    ):
        next(iter(loader))
    for word in (str(where), "mount -o remount", "HEADRACE_SHM_DIR", "batch_size"):
        assert word in str(caught.value)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_that_do_not_fit_are_an_error(small, monkeypatch, num_workers):
    monkeypatch.setenv("HEADRACE_SHM_DIR", str(small(2 << 20)))
    source_recipe, _ = counting(64, shape=(100, 100, 3))
    with hr.DataLoader(source_recipe, batch_size=64, num_workers=num_workers) as loader:
        for _ in range(2):
            with pytest.raises(hr.OutOfSharedMemory, match=r"1\.8 MiB of shared memory are needed"):
                drain(loader)


def test_keeping_more_batches_than_there_is_room_for(small, monkeypatch):
    """An error, after which it goes on once some are let go."""
    monkeypatch.setenv("HEADRACE_SHM_DIR", str(small(2 << 20)))
    source_recipe, _ = counting(200, shape=(64, 64, 3))
    with hr.DataLoader(source_recipe, batch_size=8, num_workers=1) as loader:
        iterator, kept, seen = iter(loader), [], []
        with pytest.raises(hr.OutOfSharedMemory):
            while True:
                kept.append(next(iterator))
        assert len(kept) > 10
        seen = flat(labels.tolist() for _, labels in kept)
        kept.clear()
        seen += flat(targets(iterator))
        assert seen == list(range(200))


@pytest.mark.parametrize("split", [(1, 0, 0), (0, 1, 0), (1, 1, 0)], ids=str)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_caching_stops_quietly_when_the_directory_is_full(small, monkeypatch, num_workers, split):
    where = small(8 << 20)
    monkeypatch.setenv("HEADRACE_SHM_DIR", str(where))
    source_recipe, source = counting(1000, shape=(64, 64, 3))
    options = {"batch_size": 16, "shuffle": True, "seed": 1, "cache": "64MiB", "split": split}
    with hr.DataLoader(source_recipe, num_workers=num_workers, **options) as loader:
        for _ in range(2):
            assert sorted(flat(targets(loader))) == list(range(1000))
        stats = loader.stats()
        held = stats.cache["encoded"].samples + stats.cache["decoded"].samples
        assert 200 < held < 1000
        assert stats.hits > 100
        assert stats.restarts == 0
    assert source.reads.sum() < 2000


def test_a_directory_that_fills_up_in_the_middle(small, monkeypatch):
    """Another program takes the rest: caching stops, batches go on in the slots there are."""
    where = small(8 << 20)
    monkeypatch.setenv("HEADRACE_SHM_DIR", str(where))
    source_recipe, _ = counting(600, shape=(64, 64, 3))
    options = {"batch_size": 16, "num_workers": 2, "shuffle": True, "cache": "64MiB"}
    with hr.DataLoader(source_recipe, **options) as loader:
        iterator = iter(loader)
        seen = [next(iterator)[1].tolist() for _ in range(8)]
        fill(where)
        seen += targets(iterator)
        assert sorted(flat(seen)) == list(range(600))
        assert sorted(flat(targets(loader))) == list(range(600))
        assert loader.stats().restarts == 0


@pytest.mark.parametrize("missing", ["nowhere", "file"])
def test_a_directory_that_is_none_is_an_error(tmp_path, monkeypatch, missing):
    path = tmp_path / missing
    if missing == "file":
        path.touch()
    monkeypatch.setenv("HEADRACE_SHM_DIR", str(path))
    with hr.DataLoader(recipe(10), num_workers=1) as loader, pytest.raises(OSError, match=missing):
        next(iter(loader))


_FULL_SHM = """
import os
import headrace as hr

stat = os.statvfs("/dev/shm")
assert stat.f_bavail == 0, stat
source = hr.synthetic.source(200, shape=(64, 64, 3), classes=200)
recipe = hr.Recipe(source, decode=hr.synthetic.decode())
with hr.DataLoader(recipe, batch_size=16, num_workers=2, cache="16MiB") as loader:
    for _ in range(2):
        kept = list(loader)
        assert sorted(label for _, labels in kept for label in labels.tolist()) == list(range(200))
print("fine", loader.stats().cache["decoded"].samples)
"""


def test_a_full_dev_shm_does_not_matter(tmp_path):
    """Containers have 64 MiB of it. Run with a small one of its own, full to the last page."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare(1)")
    script = tmp_path / "job.py"
    script.write_text(_FULL_SHM)
    command = (
        "mount -t tmpfs -o size=1m tmpfs /dev/shm && (cat /dev/zero > /dev/shm/filler 2>/dev/null; true) && "
        f"exec {sys.executable} {script}"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", command],
        capture_output=True, text=True, timeout=200,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    if re.search("unshare.*(not permitted|failed)|permission denied", done.stderr, re.IGNORECASE):
        pytest.skip(f"no right to a mount namespace: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fine", "200"]


@pytest.fixture
def limited():
    """The procs file of a cgroup (version 1) with a limit on memory."""
    group = V1 / f"headrace-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no right to make a cgroup in {V1}: {error}")
    (group / "memory.limit_in_bytes").write_text(str(600 << 20))
    yield group
    deadline = time.monotonic() + 20
    while (group / "cgroup.procs").read_text().split() and time.monotonic() < deadline:
        time.sleep(0.05)
    group.rmdir()


_LIMITED = """
import os
with open("{group}/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
import headrace as hr
source = hr.synthetic.source(64, shape=(64, 64, 3), classes=64)
recipe = hr.Recipe(source, decode=hr.synthetic.decode())
try:
    hr.DataLoader(recipe, cache="2GiB")
except hr.OptionError as error:
    print("refused:", error)
loader = hr.DataLoader(recipe, batch_size=8, num_workers=2, cache=0.05)
for _ in range(2):
    assert len(list(loader)) == 8
print("cache of", loader.stats().cache["decoded"].budget)
try:
    big = hr.synthetic.source(64, shape=(4000, 1000, 3))
    big_loader = hr.DataLoader(hr.Recipe(big, decode=hr.synthetic.decode()), batch_size=64, num_workers=1)
    next(iter(big_loader))
except hr.OutOfSharedMemory as error:
    print("too large:", error)
loader.close()
"""


def test_a_limit_of_the_container_counts(limited, tmp_path):
    status, out, errors = Job(_LIMITED.format(group=limited), tmp_path).finish()
    assert status == 0, errors
    refused, cache, large = out.splitlines()
    assert refused.startswith("refused: cache='2GiB' is 2.0 GiB, but ")
    assert "of memory are available" in refused
    assert int(cache.split()[-1]) == int(0.05 * (600 << 20)), "a share is one of the container's memory"
    assert large.startswith("too large: 732.4 MiB of shared memory are needed")
    assert "smaller batch_size" in large


def test_memory_that_is_not_there_is_not_promised(monkeypatch):
    monkeypatch.setattr(memory, "_memory_limits", lambda: iter([(100 << 20, 90 << 20, "/nowhere")]))
    with pytest.raises(hr.OptionError, match=r"64\.0 MiB, but 10\.0 MiB of memory are available"):
        hr.DataLoader(recipe(10), cache="64MiB")
