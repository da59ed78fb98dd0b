"""Batches that come in GPU memory: as they were prepared, however far the GPU is behind, on whatever stream."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.host.leases import Loan
from headrace.loader import device as module
from headrace.loader.device import Sent, find_device, read_device

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
BATCHES = int(os.environ.get("HEADRACE_LAG_BATCHES", "300"))
"""How many batches each of the tests with a lagging GPU hands out."""
LAG = 4_000_000
"""Clock cycles that the GPU spends before each use: two milliseconds, more than the loop takes for a batch."""


# -- options -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (None, None),
        ("cpu", None),
        (torch.device("cpu"), None),
        ("auto", "auto"),
        ("cuda", "cuda"),
        ("cuda:1", "cuda:1"),
        (1, "cuda:1"),
        (torch.device("cuda", 2), "cuda:2"),
    ],
)
def test_how_a_device_is_named(given: Any, read: str | None) -> None:
    assert read_device(given) == read


@pytest.mark.parametrize("given", ["mps", "gpu", 1.5, object()])
def test_what_is_no_device(given: Any) -> None:
    with pytest.raises(hr.OptionError, match="device="):
        read_device(given)


@pytest.mark.parametrize(("rank", "index"), [(None, 0), ("0", 0), ("3", 3), ("5", 1)])
def test_a_rank_has_its_own(monkeypatch: pytest.MonkeyPatch, rank: str | None, index: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert find_device("auto") == torch.device("cuda", index)
    assert find_device("cuda") == torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    assert find_device("auto") == torch.device("cuda", 2), "it was chosen"
    with pytest.raises(hr.OptionError, match="there are 4"):
        find_device("cuda:7")


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device("auto") is None and find_device(None) is None
    with pytest.raises(hr.OptionError, match='device="auto"'):
        find_device("cuda")
    with hr.DataLoader(recipe(), batch_size=8, num_workers=1, device="auto") as loader:
        assert all(images.device.type == "cpu" for images, _ in loader)


@cuda
def test_a_device_that_is_another_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    with hr.DataLoader(recipe(), batch_size=8, num_workers=1, device="cuda") as loader:
        iterator = iter(loader)
        next(iterator)
        real, here = torch.cuda.current_device, torch.cuda.current_device()

        def current_device() -> int:  # (torch itself asks, too)
            return real() + (sys._getframe(1).f_globals["__name__"] == "headrace.loader.device")

        monkeypatch.setattr(torch.cuda, "current_device", current_device)
        with pytest.warns(UserWarning, match=f"now that is cuda:{here + 1}.*device='cuda:{here + 1}'"):
            list(iterator)


class Happening:
    """An event that happens when it is told to."""

    def __init__(self, waited: list[Any]) -> None:
        self.happened, self._waited = False, waited

    def query(self) -> bool:
        return self.happened

    def synchronize(self) -> None:
        self._waited.append(self)
        self.happened = True


def test_a_loop_is_only_so_far_ahead_of_its_device() -> None:
    waited: list[Any] = []
    flight, events = module.Flight(3), [Happening(waited) for _ in range(8)]
    for event in events[:3]:
        flight.make_room()
        flight.add(event)
    assert not waited and flight.waited == 0
    events[0].happened = True
    flight.make_room()
    flight.add(events[3])
    assert not waited, "one has gone"
    flight.make_room()
    assert waited == [events[1]] and flight.waited > 0, "the oldest"
    events[2].happened = events[3].happened = True
    for event in events[4:7]:
        flight.make_room()
        flight.add(event)
    assert waited == [events[1]]


def test_a_forked_child_lets_no_event_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would end it."""
    gone = os.pipe()

    class OfTorch:
        def record(self, stream: Any) -> None:
            pass

        def __del__(self) -> None:
            os.write(gone[1], b"x")

    monkeypatch.setattr(torch.cuda, "Event", OfTorch)
    events: list[Any] = [module.Event(None) for _ in range(3)]
    loop: list[Any] = [module.Event(None)]
    loop.append(loop)
    del loop, events[0]
    assert os.read(gone[0], 9) == b"x", "here they go"
    child = os.fork()
    if child == 0:
        events.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    os.set_blocking(gone[0], False)
    with pytest.raises(BlockingIOError):
        os.read(gone[0], 9)
    events.clear()
    gc.collect()
    assert os.read(gone[0], 9) == b"xxx"
    os.close(gone[0])
    os.close(gone[1])


# -- what comes ----------------------------------------------------------------------------------------------


def decode(blob: Any) -> Any:
    return np.frombuffer(blob, np.uint8)[:1024].reshape(4, 256).copy()


def recipe(size: int = 64) -> hr.Recipe:
    return hr.Recipe(hr.synthetic.source(size, bytes_per_sample=4096, classes=10), decode=decode)


Pair = namedtuple("Pair", "x y")


class Nested(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return {
            "x": torch.full((3, 8, 8), float(index)),
            "y": index,
            "name": str(index),
            "pair": Pair(index, 1.0),
        }


@cuda
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_recipes_batches_are_there(workers: int) -> None:
    expected = [(x.clone(), y.clone()) for x, y in hr.DataLoader(recipe(), batch_size=8, num_workers=workers)]
    with hr.DataLoader(recipe(), batch_size=8, num_workers=workers, device="cuda") as loader:
        for _ in range(4):
            for (x, y), (plain, labels) in zip(loader, expected, strict=True):
                assert x.device.type == y.device.type == "cuda" and x.stride() == plain.stride()
                assert torch.equal(x.cpu(), plain) and torch.equal(y.cpu(), labels)


@cuda
@pytest.mark.parametrize("workers", [0, 2])
def test_a_datasets_batches_are_there(workers: int) -> None:
    with hr.DataLoader(Nested(), batch_size=4, num_workers=workers, device="cuda") as loader:
        for number, batch in enumerate(loader):
            keys = [number * 4 + at for at in range(4)]
            assert batch["x"].is_cuda and batch["x"][:, 0, 0, 0].tolist() == keys
            assert batch["y"].tolist() == keys and batch["name"] == [str(key) for key in keys]
            assert (
                type(batch["pair"]) is Pair and batch["pair"].x.is_cuda and batch["pair"].x.tolist() == keys
            )


@cuda
def test_images_keep_how_they_lie() -> None:
    images = hr.Recipe(
        hr.synthetic.source(32, bytes_per_sample=3 * 32 * 32, shape=(32, 32, 3), classes=3),
        decode=hr.synthetic.decode(),
    )
    with hr.DataLoader(images, batch_size=8, num_workers=1) as plain:
        strides = next(iter(plain))[0].stride()
    with hr.DataLoader(images, batch_size=8, num_workers=1, device="cuda") as loader:
        for x, _ in loader:
            assert x.stride() == strides and x.dtype == torch.uint8


@cuda
@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_counts_what_was_handed_out(workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 8, "num_workers": workers, "shuffle": True, "seed": 3}
    with hr.DataLoader(recipe(), **options) as plain:
        whole = [y.clone() for _, y in plain]
    for taken in range(9):
        with hr.DataLoader(recipe(), device="cuda", **options) as loader:
            iterator = iter(loader)
            for _ in range(taken):
                next(iterator)
            state = loader.state_dict()
        with hr.DataLoader(recipe(), device="cuda", **options) as loader:
            loader.load_state_dict(state)
            rest = [y.cpu() for _, y in loader]
        expected = whole[taken:] if taken < 8 else rest
        assert len(rest) == len(expected) and all(map(torch.equal, rest, expected))


@cuda
def test_an_error_comes_in_its_turn() -> None:
    class Bad(Nested):
        def __getitem__(self, index: int) -> Any:
            if index == 20:
                raise ValueError("twenty")
            return super().__getitem__(index)

    with hr.DataLoader(Bad(), batch_size=4, num_workers=2, device="cuda") as loader:
        iterator, seen = iter(loader), []
        with pytest.raises(ValueError, match="twenty"):
            for batch in iterator:
                seen += batch["y"].tolist()
        assert seen == list(range(20))
        assert [key for batch in iterator for key in batch["y"].tolist()] == list(range(24, 40))


@cuda
def test_kept_batches_stay_whole_and_memory_comes_back() -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    with hr.DataLoader(
        Pages(), batch_size=8, num_workers=2, persistent_workers=True, device="cuda"
    ) as loader:
        kept = [x for _ in range(3) for x, _ in loader]
        assert [int(x[0, 0]) for x in kept] == [8 * number for number in range(8)] * 3
    assert [int(x[0, 0]) for x in kept] == [8 * number for number in range(8)] * 3
    del kept
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


# -- a GPU that lags -----------------------------------------------------------------------------------------


class Pages(torch.utils.data.Dataset[Any]):
    """Samples of 256 KiB that are full of their index."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.full((65536,), float(index)), index


class PageStream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from (Pages()[index] for index in range(64))


def full_page(blob: Any) -> Any:
    return np.full((65536,), blob[0], np.float32)


def pages_recipe(collate: Any = None) -> hr.Recipe:
    source = hr.synthetic.source(64, bytes_per_sample=4096, classes=10)
    return hr.Recipe(source, decode=full_page, collate=collate)


KINDS: dict[str, Any] = {
    "recipe": pages_recipe,
    "recipe, collated": lambda: pages_recipe(torch.utils.data.default_collate),
    "dataset": Pages,
    "stream": PageStream,
}


@contextlib.contextmanager
def chosen(stream: str) -> Any:
    """The stream on which a user works."""
    if stream == "default":
        yield
        return
    own = torch.cuda.Stream(priority=-1 if stream == "urgent" else 0)
    side = torch.cuda.ExternalStream(own.cuda_stream) if stream == "external" else own
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream().wait_stream(side)


def wrong_ones(kind: str, workers: int, stream: str, batches: int, lag: int = LAG) -> int:
    """Batches that did not reach the GPU's work as they were prepared. It is held back before each of them."""
    make: dict[str, Any] = {"batch_size": 8, "num_workers": workers}
    if workers:
        make["persistent_workers"] = True
    if kind == "stream" and workers:
        make["num_workers"] = 1  # each worker would read the whole stream
    expected = torch.stack([x.clone() for x, _ in hr.DataLoader(KINDS[kind](), **make)]).cuda()
    assert len({float(x[0, 0]) for x in expected}) > 4, "batches must differ, or nothing would show"
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    done = 0
    with hr.DataLoader(KINDS[kind](), device="cuda", **make) as loader, chosen(stream):
        while done < batches:
            for number, (x, labels) in enumerate(loader):
                torch.cuda._sleep(lag)
                wrong += (x != expected[number]).any()
                del x, labels
                done += 1
    torch.cuda.synchronize()
    return int(wrong)


@cuda
@pytest.mark.parametrize("stream", ["default", "side", "urgent", "external"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_lagging_gpu_gets_every_batch_as_it_was(kind: str, workers: int, stream: str) -> None:
    assert wrong_ones(kind, workers, stream, BATCHES) == 0


class Bag:
    """A batch of a class of the user's, which moves itself."""

    def __init__(self, samples: Any) -> None:
        self.x = torch.stack([sample[0] for sample in samples])

    def to(self, device: Any, non_blocking: bool = False) -> Bag:
        there = Bag.__new__(Bag)
        there.x = self.x.to(device, non_blocking=non_blocking)
        return there


@cuda
@pytest.mark.parametrize("workers", [0, 2])
def test_what_moves_itself_is_there_too(workers: int) -> None:
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    options: dict[str, Any] = {"batch_size": 8, "num_workers": workers, "collate_fn": Bag, "device": "cuda"}
    with hr.DataLoader(Pages(), **options) as loader:
        for _ in range(4):
            for number, bag in enumerate(loader):
                torch.cuda._sleep(LAG)
                rows = torch.arange(8 * number, 8 * number + 8, device="cuda")
                wrong += (bag.x != rows[:, None]).any()
                del bag
    assert int(wrong) == 0


@cuda
@pytest.mark.parametrize(
    "without", ["the user's wait", "the slot's event", "the streams of what is let go of"]
)
def test_each_order_is_needed(without: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above sees it where one of the orders is left out."""

    def take(self: Any) -> Any:
        stream = torch.cuda.current_stream(self._device)
        if without != "the user's wait":
            stream.wait_event(self._event.of_torch)
        if without != "the streams of what is let go of":
            for tensor in self._tensors:
                tensor.record_stream(stream)
        return self._value

    monkeypatch.setattr(Sent, "take", take)
    lag = LAG
    if without == "the slot's event":
        monkeypatch.setattr(Loan, "until", lambda *_: None)
    if without != "the streams of what is let go of":
        # Copies come late, and not what the user does.
        send, lag = module.DeviceFeed.send, 0

        def late(self: Any, value: Any, lease: Any = None, finish: Any = None) -> Any:
            with torch.cuda.stream(self.stream):
                torch.cuda._sleep(LAG)
            return send(self, value, lease, finish)

        monkeypatch.setattr(module.DeviceFeed, "send", late)
    assert wrong_ones("recipe", 2, "default", 200, lag) > 0


@cuda
def test_a_captured_step_reads_the_batch_that_was_put_there() -> None:
    with hr.DataLoader(pages_recipe(), batch_size=8, num_workers=2, device="cuda") as loader:
        expected = [float(x.double().sum()) for x, _ in loader]
        static = torch.zeros((8, 65536), device="cuda")
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            static.double().sum()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.cuda._sleep(LAG)
            out = static.double().sum()
        found = []
        for _ in range(max(1, BATCHES // 16)):
            for x, _ in loader:
                static.copy_(x, non_blocking=True)
                graph.replay()
                found.append(out.clone())
    assert [float(one) for one in found] == expected * (len(found) // len(expected))


@cuda
def test_workers_that_are_started_late_find_their_slots() -> None:
    """Pages that are locked by then may not be there in a process that is forked."""
    many = hr.Recipe(hr.synthetic.source(512, bytes_per_sample=4096, classes=10), decode=full_page)
    with hr.DataLoader(many, batch_size=8, num_workers=2, device="cuda", seed=1) as loader:
        expected = [x[:, 0].cpu() for x, _ in loader]
        for _ in range(3):
            found = []
            for number, (x, _) in enumerate(loader):
                found.append(x[:, 0].cpu())
                assert bool((x == x[:, :1]).all())
                if number in (5, 20):
                    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
            assert all(map(torch.equal, found, expected)) and len(found) == len(expected)
        assert loader.stats().restarts >= 4


@cuda
def test_a_forked_child_is_none_of_the_devices_business() -> None:
    many = hr.Recipe(hr.synthetic.source(256, bytes_per_sample=4096, classes=10), decode=full_page)
    with hr.DataLoader(many, batch_size=8, num_workers=2, device="cuda") as loader:
        for _ in range(3):
            for _ in loader:
                pass
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                del loader
                gc.collect()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert sum(len(y) for _, y in loader) == 256


@cuda
def test_pages_that_cannot_be_locked_are_copied_by_the_host() -> None:
    """And what the device said of it is not taken for a fault of whatever comes next."""
    pages, memory = module.LockedPages(), np.zeros(1 << 20, np.uint8)
    view = memoryview(memory)
    assert int(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, 1 << 20, 1)) == 0
    try:
        assert not pages.lock(view) and not pages.lock(view), "it is locked already"
        assert float((torch.ones(8, device="cuda") * 2).sum()) == 16
        torch.cuda.synchronize()
    finally:
        torch.cuda.cudart().cudaHostUnregister(memory.ctypes.data)


@cuda
def test_batches_are_what_others_take_without_a_copy() -> None:
    with hr.DataLoader(recipe(), batch_size=8, num_workers=1, device="cuda") as loader:
        x, _ = next(iter(loader))
        assert x.__cuda_array_interface__["data"][0] == x.data_ptr()
        assert torch.from_dlpack(x).data_ptr() == x.data_ptr()


@cuda
def test_slots_are_read_by_the_device_itself() -> None:
    """Once they come back: nothing is copied by the host then."""
    many = hr.Recipe(hr.synthetic.source(2048, bytes_per_sample=4096, classes=10), decode=full_page)
    with hr.DataLoader(many, batch_size=8, num_workers=2, device="cuda") as loader:
        before = None
        for _ in range(2):
            before = loader.stats().device
            for _ in loader:
                pass
        after = loader.stats().device
    assert after is not None and after.name == "cuda:0" and after.finished == ()
    assert after.bytes == 2 * 2048 * (65536 * 4 + 8)
    assert before is not None and after.copied - before.copied < 2048 * 65536, (
        "less than a quarter of an epoch's bytes"
    )
