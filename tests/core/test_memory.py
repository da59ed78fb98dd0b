"""What a process may use, read from files as kernels and containers write them, and from a real cgroup."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core import memory

MIB = 2**20
UNLIMITED_V1 = "9223372036854771712\n"


class Machine:
    """A made-up /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroups.mkdir()

    def own(self, *lines: str) -> None:
        """What /proc/self/cgroup says."""
        (self.proc / "self/cgroup").write_text("".join(f"{line}\n" for line in lines))

    def write(self, path: str, text: object) -> None:
        """A file below the cgroup mount."""
        file = self.cgroups / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def available(self, size: int) -> None:
        """What the kernel says is available."""
        (self.proc / "meminfo").write_text(
            f"MemTotal:       99999999 kB\nMemFree:           123 kB\nMemAvailable:   {size // 1024} kB\n"
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(memory, "_PROC", str(made.proc))
    monkeypatch.setattr(memory, "_CGROUPS", str(made.cgroups))
    pages = {"SC_PHYS_PAGES": 4096 * 256, "SC_PAGE_SIZE": 4096}  # 4 GiB
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    return made


def test_no_cgroups_and_no_proc_at_all(machine: Machine) -> None:
    assert memory.total_memory() == 4096 * MIB
    assert memory.available_memory() == 4096 * MIB
    assert memory.usable_cpus() == 16


def test_available_is_what_the_kernel_says(machine: Machine) -> None:
    machine.available(700 * MIB)
    assert memory.available_memory() == 700 * MIB


def test_v2_container_that_sees_its_own_root(machine: Machine) -> None:
    machine.available(3000 * MIB)
    machine.own("0::/")
    machine.write("memory.max", 512 * MIB)
    machine.write("memory.current", 200 * MIB)
    machine.write("memory.stat", f"anon 5\nfile 7\ninactive_file {50 * MIB}\nactive_file 3")
    assert memory.total_memory() == 512 * MIB
    assert memory.available_memory() == 362 * MIB, "inactive page cache is given back under pressure"


def test_v2_unlimited(machine: Machine) -> None:
    machine.available(3000 * MIB)
    machine.own("0::/user.slice")
    machine.write("user.slice/memory.max", "max")
    machine.write("user.slice/memory.current", 200 * MIB)
    assert memory.total_memory() == 4096 * MIB
    assert memory.available_memory() == 3000 * MIB


@pytest.mark.parametrize("limited", ["batch", "batch/job_7", "batch/job_7/step_0"])
def test_v2_limit_of_any_cgroup_above_counts(machine: Machine, limited: str) -> None:
    """Batch systems limit the job, and run the process some levels below."""
    machine.available(3000 * MIB)
    machine.own("0::/batch/job_7/step_0")
    machine.write("batch/job_7/step_0/memory.max", "max")
    machine.write(f"{limited}/memory.max", 300 * MIB)
    machine.write(f"{limited}/memory.current", 100 * MIB)
    assert memory.total_memory() == 300 * MIB
    assert memory.available_memory() == 200 * MIB


def test_v1_own_cgroup(machine: Machine) -> None:
    machine.available(3000 * MIB)
    machine.own("5:cpu,cpuacct:/", "4:memory:/docker/abc", "0::/")
    machine.write("memory/memory.limit_in_bytes", UNLIMITED_V1)
    machine.write("memory/docker/abc/memory.limit_in_bytes", 256 * MIB)
    machine.write("memory/docker/abc/memory.usage_in_bytes", 100 * MIB)
    stat = f"inactive_file 1\ntotal_cache 9\ntotal_inactive_file {20 * MIB}"
    machine.write("memory/docker/abc/memory.stat", stat)
    assert memory.total_memory() == 256 * MIB
    assert memory.available_memory() == 176 * MIB, (
        "pages of cgroups below count as usage, so as reclaimable too"
    )


def test_v1_container_whose_path_is_the_machines(machine: Machine) -> None:
    machine.available(3000 * MIB)
    machine.own("4:memory:/docker/abc")
    machine.write("memory/memory.limit_in_bytes", 256 * MIB)
    machine.write("memory/memory.usage_in_bytes", 300 * MIB)
    assert memory.total_memory() == 256 * MIB
    assert memory.available_memory() == 0, "more than the limit in use leaves nothing, not less than nothing"


def test_path_outside_of_the_namespace(machine: Machine) -> None:
    machine.own("0::/../../other")
    machine.write("memory.max", 64 * MIB)
    assert memory.total_memory() == 64 * MIB


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [("max 100000", 16), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1), ("", 16)],
)
def test_cpu_quota_v2(machine: Machine, quota: str, cpus: int) -> None:
    machine.own("0::/pod/container")
    machine.write("pod/cpu.max", quota)
    assert memory.usable_cpus() == cpus


@pytest.mark.parametrize(("quota", "cpus"), [(-1, 16), (300000, 3), (50000, 1)])
def test_cpu_quota_v1(machine: Machine, quota: int, cpus: int) -> None:
    machine.own("3:cpu,cpuacct:/job")
    machine.write("cpu/job/cpu.cfs_quota_us", quota)
    machine.write("cpu/job/cpu.cfs_period_us", 100000)
    assert memory.usable_cpus() == cpus


def test_affinity_counts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    machine.own("0::/")
    machine.write("cpu.max", "400000 100000")
    assert memory.usable_cpus() == 2


def test_this_machine_makes_sense() -> None:
    assert 0 < memory.available_memory() <= memory.total_memory()
    assert 1 <= memory.usable_cpus() <= (os.cpu_count() or 1)


@pytest.fixture
def real_cgroup() -> Iterator[tuple[Path, str]]:
    """A cgroup of our own with a memory limit of 300 MiB, of whichever version the machine has."""
    name = f"headrace-test-{os.getpid()}"
    for base, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        path = Path(base, name)
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            (path / limit).write_text(str(300 * MIB))
        except OSError:
            path.rmdir()
            continue
        yield path, limit
        path.rmdir()
        return
    pytest.skip("cgroups with a memory limit cannot be made here (needs root and a writable /sys/fs/cgroup)")


def test_a_real_limit_is_found(real_cgroup: tuple[Path, str]) -> None:
    path, _ = real_cgroup
    code = (
        f"import os\nopen({str(path / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        "import headrace.core.memory as memory\n"
        "held = bytearray(os.urandom(64 << 20))\n"
        "print(memory.total_memory(), memory.available_memory())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    total, available = map(int, done.stdout.split())
    assert total == 300 * MIB
    assert 0 < available <= (300 - 64) * MIB


def test_threads_take_half_of_the_addresses_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.resource, "getrlimit", lambda _: (8 * MIB, -1))
    for room, threads in (
        (None, 32),
        (0, 0),
        (143 * MIB, 0),
        (144 * MIB, 1),
        (1440 * MIB, 10),
        (1 << 40, 32),
    ):
        monkeypatch.setattr(memory, "address_room", lambda room=room: room)
        assert memory.thread_room(32) == threads
    monkeypatch.setattr(memory.resource, "getrlimit", lambda _: (memory.resource.RLIM_INFINITY, -1))
    monkeypatch.setattr(memory, "address_room", lambda: 1440 * MIB)
    assert memory.thread_room(32) == 10
