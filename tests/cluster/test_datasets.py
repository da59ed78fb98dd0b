"""The datasets of a server, while several threads define, use and forget them at the same time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster import datasets as datasets_module
from headrace.cluster import memory as memory_module
from headrace.cluster.datasets import CannotOpen, Datasets
from headrace.cluster.fetching import Fetcher
from headrace.cluster.memory import PoolMemory
from headrace.cluster.messages import Ahead, Came, Define, Node, View
from headrace.core.errors import ProtocolError
from headrace.recipes.plain import source_to_plain
from headrace.sources.source import Source
from tests.cluster.nodes import make_files
from tests.loader.helpers import wait_until

SAMPLES = 20


class Around:
    """A lock, and what others do just before somebody takes it, or just after: once."""

    def __init__(
        self, lock: Any, *, before: Callable[[], object] = int, after: Callable[[], object] = int
    ) -> None:
        self._lock, self._before, self._after = lock, [before], [after]

    def __enter__(self) -> None:
        if self._before:
            self._before.pop()()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._after:
            self._after.pop()()


class Server:
    """What a server has of datasets."""

    def __init__(self) -> None:
        self.memory, self.said = PoolMemory(1 << 20), list[str]()
        self.fetcher = Fetcher(self.memory)
        self.datasets = Datasets("n0", self.memory, self.fetcher, self.said.append)

    def forget(self) -> None:
        """As it is done when another dataset comes."""
        with self.datasets._lock:
            assert self.datasets._forget()

    def close(self) -> None:
        self.datasets.close()
        self.fetcher.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(memory_module, "_QUIET", -1.0)
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Source]:
    folder = tmp_path_factory.mktemp("data")
    return [make_files(folder / str(number), SAMPLES) for number in range(6)]


def defined(source: Source) -> Define:
    return Define(source.fingerprint(), json.dumps(source_to_plain(source)).encode())


def view(number: int, *names: str) -> View:
    return View(number, tuple(Node(name, name, "host", 1, "c", 1) for name in names))


# -- reading ahead --------------------------------------------------------------------------------------------


def test_an_epoch_that_begins_as_others_come_is_the_one_that_is_read(
    server: Server, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = server.datasets
    name = datasets.define(defined(sources[0])).name
    datasets.see(view(1, "n0"))
    datasets.preload(Ahead(name, 1, 3))
    begins = Around(datasets._lock, after=lambda: datasets.preload(Ahead(name, 1, 4)))
    monkeypatch.setattr(datasets, "_lock", begins)
    datasets.see(view(2, "n0", "n1"))
    assert datasets._preloads[name][0].epoch == 4


def test_of_a_dataset_that_is_forgotten_as_an_epoch_begins_nothing_is_read(
    server: Server, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = server.datasets
    name = datasets.define(defined(sources[0])).name
    monkeypatch.setattr(datasets, "_lock", Around(datasets._lock, before=server.forget))
    with pytest.raises(ProtocolError, match="not known"):
        datasets.preload(Ahead(name, 1, 0))
    assert not datasets._preloads


def test_a_dataset_that_is_forgotten_is_read_no_more_when_others_come(
    server: Server, sources: list[Source]
) -> None:
    datasets = server.datasets
    datasets.see(view(1, "n0"))
    name = datasets.define(defined(sources[0])).name
    datasets.preload(Ahead(name, 1, 0))
    reading = datasets._preloads[name][1]
    server.forget()
    datasets.see(view(2, "n0", "n1"))
    assert not datasets._preloads and wait_until(lambda: not reading._thread.is_alive())


def test_of_a_dataset_that_is_forgotten_meanwhile_nothing_has_come(
    server: Server, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = server.datasets
    name = datasets.define(defined(sources[0])).name
    monkeypatch.setattr(datasets, "_lock", Around(datasets._lock, after=server.forget))
    said = datasets.came(Came(name, 0))
    assert (said.count, said.samples, said.more) == (0, b"", False)


# -- defining -------------------------------------------------------------------------------------------------


def test_definitions_that_fail_leave_nothing_behind(server: Server) -> None:
    for number in range(100):
        with pytest.raises(CannotOpen):
            server.datasets.define(Define(f"junk {number}", b"{}"))
    assert not server.datasets._defining and not server.memory.describe()


def test_no_more_datasets_are_listed_at_once_than_there_may_be(
    server: Server, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets_module, "_MOST_DATASETS", 2)
    made, go = datasets_module.source_from_plain, threading.Event()
    refused: list[str] = []

    def waits(plain: Any) -> Any:
        go.wait(60)
        return made(plain)

    monkeypatch.setattr(datasets_module, "source_from_plain", waits)

    def define(source: Source) -> None:
        try:
            server.datasets.define(defined(source))
        except ProtocolError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=define, args=(one,)) for one in sources]
    for thread in threads:
        thread.start()
    few = wait_until(lambda: len(refused) == len(sources) - 2)
    go.set()
    for thread in threads:
        thread.join()
    assert few and len(list(server.datasets)) == len(server.memory.describe()) == 2
    server.datasets.define(defined(sources[-1]))
    names = [one.name for one in server.datasets]
    assert len(names) == 2 and sources[-1].fingerprint() in names, "one has gone for it"


def test_a_dataset_is_listed_once_whoever_defines_it(
    server: Server, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, listed = datasets_module.source_from_plain, list[Any]()

    def counts(plain: Any) -> Any:
        listed.append(plain)
        return made(plain)

    monkeypatch.setattr(datasets_module, "source_from_plain", counts)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(server.datasets.define(defined(sources[0]))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(listed) == 1 and len(found) == 4 and len(set(map(id, found))) == 1


@pytest.mark.parametrize("where", ["memory", "dataset"])
def test_a_dataset_for_which_there_is_no_memory_is_refused(
    where: str, server: Server, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise MemoryError("so many samples")

    with monkeypatch.context() as patched:
        if where == "memory":
            patched.setattr(server.memory, "open", fails)
        else:
            patched.setattr(datasets_module, "Dataset", fails)
        with pytest.raises(CannotOpen, match="MemoryError: so many samples"):
            server.datasets.define(defined(sources[0]))
    assert not list(server.datasets) and not server.memory.describe()
    assert server.datasets.define(defined(sources[0])).samples == SAMPLES


def test_a_dataset_that_is_forgotten_while_it_is_listed_anew_is_whole(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with a higher limit comes, and nobody uses what there was."""
    source = make_files(tmp_path / "data", SAMPLES)
    plain = source_to_plain(source)
    made = datasets_module.source_from_plain
    first = server.datasets.define(defined(source))

    def forgets(plain: Any) -> Any:
        server.forget()
        return made(plain)

    monkeypatch.setattr(datasets_module, "source_from_plain", forgets)
    larger = json.dumps({**plain, "max_bytes": plain["max_bytes"] + 1}).encode()
    found = server.datasets.define(Define(first.name, larger))
    assert found.limit == plain["max_bytes"] + 1
    assert server.datasets.get(first.name) is found and server.memory.keep(first.name, 3, b"some")
