"""Images in the memory of a device that jobs share: whoever dies, the others go on, exact, and no memory is lost.

Here, memory of this machine takes the place of a device's: the host and all jobs are as they are with one.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import headrace as hr
from headrace.channel import unix
from headrace.host import control, runtime
from headrace.loader.device_memory import CudaMemory
from headrace.loader.device_pool import PoolRooms
from tests.loader import device_jobs
from tests.loader.device_jobs import SharedHere, told
from tests.loader.helpers import kill, wait_until
from tests.sharing.fixtures import place

__all__ = ["place"]
SAMPLES = 64
IMAGES = 48
ALONE = "PYTEST_XDIST_WORKER" not in os.environ
"""Whether no other test uses the memory of a device meanwhile."""
KILLS = int(os.environ.get("HEADRACE_KILLS", "0"))
"""How many jobs the longer tests kill."""
BUDGET = 1 << 26
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
spawn: Any = multiprocessing.get_context("forkserver")
spawn.set_forkserver_preload(["tests.loader.device_jobs"])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, dice = tmp_path_factory.mktemp("photos"), np.random.default_rng(4)
    for number in range(IMAGES):
        height, width = dice.integers(60, 200, 2)
        pixels = dice.integers(0, 255, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
        Image.fromarray(pixels).resize((int(width), int(height))).save(root / f"{number:02}.jpg", quality=80)
    return root


@pytest.fixture
def photos(drawn: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for path in drawn.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture(scope="module")
def forks() -> None:
    """Where jobs come from: it is there before a test has a host of its own, and belongs to none."""
    forkserver.ensure_running()


@pytest.fixture
def start(forks: None, place: Path, photos: Path, tmp_path: Path) -> Iterator[Callable[..., tuple[Any, str]]]:
    """Starts a job; returns its process, and where it writes what it got."""
    started: list[Any] = []

    def begin(seed: int, *, here: bool = True, **more: Any) -> tuple[Any, str]:
        into = str(tmp_path / f"job-{len(started)}")
        more = {"gpu_cache": "64MiB", "split": (1, 0, 0), **more}
        # (the server that forks them has the environment of when it was started)
        process = spawn.Process(target=_run, args=(dict(os.environ), str(photos), into, seed, here, more))
        process.start()
        started.append(process)
        return process, into

    yield begin
    for process in started:
        if process.is_alive():
            process.kill()
        process.join(10)


def _run(environment: dict[str, str], *words: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    device_jobs.job(*words)


def devices() -> list[control.DeviceStatus]:
    status = control.status()
    return [] if status is None else status.devices


# -- one process ---------------------------------------------------------------------------------------------


class Job:
    """The end of one job, without all the rest of it."""

    def __init__(
        self, memory: Any = None, *, token: str = "", key: str = "key", budget: int = BUDGET
    ) -> None:
        self.known: dict[int, tuple[int, int, int]] = {}
        self.rooms = PoolRooms(
            runtime.dial(),
            token or f"{id(self)}",
            memory or SharedHere(),
            key=key,
            label="a device",
            samples=SAMPLES,
            budget=budget,
            learn=self.learn,
        )

    def learn(self, samples: Any, places: Any, sides: Any) -> None:
        for sample, found, (height, width) in zip(
            samples.tolist(), places.tolist(), sides.tolist(), strict=True
        ):
            self.known[sample] = found, height, width

    def add(self, sample: int, height: int = 100, width: int = 90) -> bool:
        room = self.rooms.take(3 * height * width)
        if room is None:
            return False
        room.memory.fill_(sample + 1)
        self.rooms.tell(sample, room, height, width)
        self.learn(np.array([sample]), np.array([room.memory.data_ptr()]), np.array([[height, width]]))
        return True

    def reads(self, sample: int) -> bool:
        """Whether an image is there, and all of it as it was written."""
        found, height, width = self.known[sample]
        memory = device_jobs.bytes_at(found, 3 * height * width)
        return bool((memory == sample + 1).all())

    def knows(self, samples: Any) -> bool:
        return wait_until(lambda: set(samples) <= set(self.known), 20)

    def ready(self) -> Job:
        assert wait_until(lambda: self.rooms.connected, 20)
        return self


@pytest.fixture
def host(place: Path) -> Path:
    runtime.find_or_start(20).close()
    return place


def test_images_of_one_are_found_by_others(host: Path) -> None:
    one, other = Job().ready(), Job().ready()
    assert all(one.add(sample) for sample in range(10))
    assert all(other.add(sample, 50, 40) for sample in range(10, 20))
    late = Job().ready()
    for job in (one, other, late):
        assert job.knows(range(20)) and all(job.reads(sample) for sample in range(20))
    assert late.known[3][1:] == (100, 90) and late.known[13][1:] == (50, 40)
    assert one.rooms.has(13) and not one.rooms.has(20)
    (found,) = devices()
    assert found.jobs == 3 and found.bytes == 2 * (16 << 20) and found.budget == BUDGET
    for job in (one, other, late):
        job.rooms.close()
    assert wait_until(lambda: not devices(), 10), "nobody is left who reads it"


def test_those_of_other_images_are_not_met(host: Path) -> None:
    one, other = Job(key="a").ready(), Job(key="b").ready()
    assert one.add(1) and not other.rooms.has(1)
    assert len(devices()) == 2
    one.rooms.close()
    other.rooms.close()


def test_there_is_an_end_to_it_and_room_that_somebody_leaves_is_used(host: Path) -> None:
    """Chunks are of 16 MiB, and there is room for two."""
    one, other, third = (Job(budget=40 << 20).ready() for _ in range(3))
    assert one.add(0, 1000, 1000) and other.add(1, 1000, 1000)
    assert not third.add(2, 1000, 1000) and third.rooms.full
    assert one.add(2, 1000, 1000) and not one.rooms.full, "there is room where it writes"
    assert not one.add(3, 10_000, 1000), "no chunk has so much"
    one.rooms.close()
    assert wait_until(lambda: not third.rooms.full, 10), "it is told"
    assert third.add(3, 1000, 1000) and third.knows(range(4))
    assert all(third.reads(sample) for sample in range(4))
    assert devices()[0].bytes == 32 << 20
    fourth = Job(budget=80 << 20).ready()
    assert fourth.add(4), "the largest budget counts"
    for job in (other, third, fourth):
        job.rooms.close()


def test_a_device_without_memory(host: Path) -> None:
    class Poor(SharedHere):
        def create(self, nbytes: int) -> int:
            raise MemoryError

    one, other = Job(Poor()).ready(), Job().ready()
    assert not one.add(1) and one.rooms.full
    assert other.add(2) and one.knows([2]) and one.reads(2)
    one.rooms.close()
    other.rooms.close()


def test_memory_that_cannot_be_mapped_here(host: Path) -> None:
    class Apart(SharedHere):
        def map(self, fd: int, nbytes: int) -> torch.Tensor:
            raise OSError("not from here")

    one, other = Job().ready(), Job(Apart()).ready()
    with pytest.warns(UserWarning, match="not shared with other jobs: their memory cannot be mapped"):  # noqa: PT031
        assert one.add(1)
        assert wait_until(lambda: not other.rooms.connected, 10)
    assert not other.add(2) and other.rooms.full and not other.known
    assert one.add(2)
    one.rooms.close()
    other.rooms.close()


def test_a_host_that_is_lost(host: Path) -> None:
    """All that jobs have goes over to the next one: what is there stays, and they go on where they write."""
    one, other = Job().ready(), Job().ready()
    assert one.add(0) and other.add(1)
    for number in range(3):
        status = control.status()
        assert status is not None
        kill(
            status.pid
        )  # (until it is gone: it still takes connections when the first of its own have ended)
        assert wait_until(lambda: not one.rooms.connected and not other.rooms.connected, 10)
        first = 2 + 4 * number
        assert one.add(first), "there is room where it writes"
        runtime.find_or_start(20).close()
        one.ready(), other.ready()
        assert wait_until(lambda: devices() and devices()[0].bytes == 2 * (16 << 20), 10), devices()
        assert other.add(first + 1) and one.knows([first + 1]) and other.knows([first])
        late = Job().ready()
        assert late.add(first + 2) and one.knows([first + 2]) and one.reads(first + 2)
        assert late.knows(range(first + 2)) and all(late.reads(sample) for sample in range(first + 3))
        late.rooms.close()
        # (what it wrote to is somebody's who comes; and so there is one chunk more each time a host is lost)
        status = control.status()
        assert status is not None and status.devices[0].bytes == 3 * (16 << 20)
        again = Job().ready()
        assert again.add(first + 3) and again.knows(range(first + 4))
        assert devices()[0].bytes == 3 * (16 << 20)
        again.rooms.close()
        break
    one.rooms.close()
    other.rooms.close()
    assert wait_until(lambda: not devices(), 10)


def test_who_comes_when_others_are_elsewhere_stays_alone(host: Path) -> None:
    one = Job().ready()
    assert one.add(0)
    status = control.status()
    assert status is not None
    gate, one.rooms._dial = one.rooms._dial, _nowhere
    kill(status.pid)
    assert wait_until(lambda: not one.rooms.connected, 10)
    runtime.find_or_start(20).close()
    other = Job().ready()
    assert other.add(1)
    one.rooms._dial = gate
    assert wait_until(lambda: one.rooms.full, 10)
    assert one.reads(0) and not one.rooms.connected and 0 not in other.known
    one.rooms.close()
    other.rooms.close()


def _nowhere(seconds: float) -> Any:
    raise FileNotFoundError


def test_a_connection_that_is_lost(host: Path) -> None:
    """The same host, and the same job: it goes on where it writes."""
    one, other = Job().ready(), Job().ready()
    assert one.add(0) and other.add(1)
    for sample in range(2, 8):
        channel = one.rooms._channel
        channel.shut()
        assert wait_until(lambda before=channel: one.rooms._channel not in (None, before), 10)
        assert one.add(sample) and other.knows([sample])
        assert devices()[0].bytes == 2 * (16 << 20)
    one.rooms.close()
    other.rooms.close()


def test_what_no_job_would_say(host: Path) -> None:
    from headrace.channel.asking import greet
    from headrace.coordinate.messages import encoder
    from headrace.coordinate.protocol import (
        PROTOCOL,
        Attach,
        Chunk,
        Finished,
        Hello,
        NoMemory,
        WantChunk,
    )

    good = Job().ready()
    assert good.add(0)
    attach = Attach("key", "x", SAMPLES, BUDGET, 1 << 20)
    bad: list[list[Any]] = [
        [WantChunk()],
        [NoMemory()],
        [Finished(1, 0, 1)],
        [attach, attach],
        [attach, Chunk(5)],
        [Attach("key", "x", SAMPLES + 1, BUDGET, 1 << 20)],
        [attach, (Chunk(1, writing=True), b"bytes")],
        [(Attach("other", "x", SAMPLES, BUDGET, 1 << 20, pool=7), b"no table")],
    ]
    for words in bad:
        channel = runtime.connect(5.0)
        assert channel is not None
        greet(channel, Hello(PROTOCOL, "device", os.getpid(), "hostile"), 5.0)
        for word in words:
            message, beside = word if isinstance(word, tuple) else (word, None)
            channel.send(encoder.encode(message), beside)
        assert wait_until(lambda here=channel: _is_over(here), 10), words
        channel.close()
    assert good.add(1) and len(devices()) == 1 and devices()[0].jobs == 1
    good.rooms.close()


def _is_over(channel: unix.UnixChannel) -> bool:
    try:
        while (received := channel.receive()) is not None:
            if received[1] is not None:
                received[1].close()
    except BlockingIOError:
        return False
    return True


# -- jobs ----------------------------------------------------------------------------------------------------


def last(into: str) -> dict[str, Any]:
    found = told(into)
    return found[-1] if found else {}


@pytest.mark.slow
def test_jobs_that_share_decode_each_image_once(start: Any, photos: Path) -> None:
    first, one = start(1)
    assert wait_until(lambda: last(one).get("held", 0) == IMAGES, 60), Path(one).read_text()
    second, other = start(2)
    assert wait_until(lambda: len(told(other)) >= 6, 60), Path(other).read_text()
    (photos / "enough").touch()
    for process in (first, second):
        process.join(60)
        assert process.exitcode == 0
    assert all(line["right"] for line in (*told(one), *told(other)))
    late = [line for line in told(other) if "held" in line][-1]
    # (what the first job holds is known in a moment, and by then the first epoch has begun)
    assert late["held"] == IMAGES and late["hits"] > 0
    counts = [line["decoded"] for line in told(other) if "decoded" in line]
    assert counts[-1] == counts[1] <= 2 * IMAGES


def kills(start: Any, photos: Path, count: int, *, here: bool, at_once: int = 1) -> None:
    """Kill jobs at any moment, again and again, beside three others that share their memory."""
    dice = random.Random(5)
    others = [start(seed, here=here) for seed in range(3)]
    assert wait_until(lambda: all(told(into) for _, into in others), 120), [
        Path(into).read_text() for _, into in others
    ]
    for _ in range(-(-count // at_once)):
        victims = [start(3 + number % 2, here=here) for number in range(at_once)]
        for process, into in victims:
            if dice.random() < 0.8:  # (else it may not even have begun)
                assert wait_until(lambda into=into: len(told(into)) > 0, 120), Path(into).read_text()
            time.sleep(dice.random() * 0.3)
            process.kill()
        for process, into in victims:
            process.join()
            assert all(line["right"] for line in told(into)), Path(into).read_text()
        assert all(job.is_alive() for job, _ in others), [Path(into).read_text() for _, into in others]
    counts = [len(told(into)) for _, into in others]
    assert wait_until(
        lambda: all(len(told(into)) > had for had, (_, into) in zip(counts, others, strict=True)), 60
    ), "they go on"
    (found,) = devices()
    assert found.jobs == 3 and found.bytes <= found.budget
    assert all(told(into)[-1]["held"] == IMAGES for _, into in others)
    (photos / "enough").touch()
    for process, into in others:
        process.join(60)
        assert process.exitcode == 0, Path(into).read_text()
        assert all(line["right"] for line in told(into)), Path(into).read_text()
    assert wait_until(lambda: not devices(), 10), "the host lets go of what nobody reads"


@pytest.mark.slow
def test_jobs_that_are_killed_beside_others(start: Any, photos: Path) -> None:
    kills(start, photos, 1, here=True)


@pytest.mark.slow
def test_images_here_and_there(start: Any, photos: Path) -> None:
    """What is held by the device need not be cached here, and what is cached here is not decoded there."""
    process, into = start(1, split=None, cache="512KiB", gpu_cache="1MiB")
    assert wait_until(lambda: len(told(into)) > 12, 60), Path(into).read_text()
    (photos / "enough").touch()
    process.join(60)
    assert process.exitcode == 0 and all(line["right"] for line in told(into))
    found = [line for line in told(into) if "held" in line][-1]
    assert 0 < found["held"] < IMAGES


@pytest.mark.slow
def test_jobs_that_are_killed_many_times(start: Any, photos: Path) -> None:
    kills(start, photos, KILLS or 30, here=True, at_once=3)


@pytest.mark.slow
def test_a_host_that_is_killed_beneath_jobs(start: Any, photos: Path) -> None:
    others = [start(seed) for seed in range(2)]
    for _ in range(3):
        counts = [len(told(into)) for _, into in others]
        assert wait_until(
            lambda counts=counts: all(
                len(told(into)) > had for had, (_, into) in zip(counts, others, strict=True)
            ),
            60,
        ), [Path(into).read_text() for _, into in others]
        status = control.status()
        if status is not None:
            os.kill(status.pid, signal.SIGKILL)
    (photos / "enough").touch()
    for process, into in others:
        process.join(60)
        assert process.exitcode == 0, Path(into).read_text()
        assert all(line["right"] for line in told(into)), Path(into).read_text()


# -- on a device ---------------------------------------------------------------------------------------------


def free() -> int:
    return int(torch.cuda.mem_get_info()[0])


@cuda
def test_memory_of_a_device_outlives_who_made_it() -> None:
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    device = torch.device("cuda", 0)
    before = free()
    mine, theirs = CudaMemory(device), CudaMemory(device)
    fd = mine.create(1 << 28)
    written = mine.map(fd, 1 << 28)
    written.copy_(torch.arange(1 << 28, device=device) % 251)
    read = theirs.map(fd, 1 << 28)
    os.close(fd)
    mine.close()
    assert bool((read == torch.arange(1 << 28, device=device) % 251).all())
    torch.cuda.empty_cache()
    assert not ALONE or before - free() >= 1 << 28
    theirs.close()
    torch.cuda.empty_cache()
    assert not ALONE or before - free() < 1 << 26
    with pytest.raises(OSError, match="cuMem"):
        mine.map(os.open("/dev/null", os.O_RDONLY), 1 << 21)
    with pytest.raises(MemoryError):
        mine.create(1 << 45)


@cuda
def test_jobs_on_a_device_that_are_killed(start: Any, photos: Path) -> None:
    """None of its memory is lost: the jobs' own is the driver's to take back, and what they shared the host's."""
    torch.zeros(1, device="cuda")
    before = free()
    kills(start, photos, KILLS or 8, here=False, at_once=4)
    assert not ALONE or wait_until(lambda: before - free() < 1 << 26, 30), before - free()


@cuda
def test_two_loaders_of_one_process_on_a_device(place: Path, photos: Path) -> None:
    whole = device_jobs.expected(str(photos), 1)
    made, more = device_jobs.recipe(str(photos)), {"share": True, "gpu_cache": "64MiB", "split": (1, 0, 0)}

    def epochs(loader: Any) -> bool:
        found = []
        for number in range(2):
            loader.set_epoch(number)
            found.append([device_jobs.sums(batch) for batch in loader])
        return np.allclose(found, whole)

    with (
        hr.DataLoader(made, **device_jobs.options(1), **more) as one,
        hr.DataLoader(made, **device_jobs.options(1), **more) as other,
    ):
        assert epochs(one) and epochs(other)
        assert wait_until(lambda: told_of(other).held == IMAGES, 10)
        decoded = told_of(other).decoded
        assert epochs(other) and epochs(one) and told_of(other).decoded == decoded


def told_of(loader: Any) -> Any:
    return loader.stats().device
