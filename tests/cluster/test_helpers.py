"""Helpers: rows prepared on other nodes are the rows that the rank's own workers would make, whoever is killed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.channel import wire
from headrace.cluster import granted, joining, lines, transports
from headrace.cluster import helper as helper_module
from headrace.cluster import members as members_module
from headrace.cluster.helper import Config, Helpers, HelperServer
from headrace.cluster.members import ask, greet
from headrace.cluster.messages import Grant, Teach, decode_request
from headrace.cluster.nixl_rows import NixlReceiving
from headrace.cluster.rows import NIXL, TLS
from headrace.cluster.taught import Recipes
from headrace.core.errors import HostRefused
from headrace.engine.worker import AGENT
from headrace.planning import peers
from headrace.planning.helping import Few
from headrace.recipes.compile import compile_recipe
from tests.cluster import user_steps
from tests.cluster.nodes import TOKEN, Servers, forget_members, needs_nixl, write_photos
from tests.loader.device_jobs import Own, stand_in
from tests.loader.helpers import wait_until

PHOTOS = 96


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder, PHOTOS)
    return folder


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """Three nodes; jobs here are on the first of them, as if Ray had started them."""
    made = Servers(tmp_path, count=3)
    here = made.nodes["n0"].socket
    monkeypatch.setattr(peers, "_SLACK", 60.0)  # (files here are faster than any node)
    monkeypatch.setattr(joining, "ray_node", lambda: "n0")
    monkeypatch.setattr(joining, "find_members", lambda **_: (here, members_module.members_of(here)))
    yield made
    forget_members()
    made.close()


def slow(image: Any) -> Any:
    """A step of the user's."""
    return image


def recipe(
    folder: Path, *steps: Any, first: int = 0, of_targets: Any = None, max_bytes: str = "1GiB"
) -> hr.Recipe:
    paths = sorted(folder.glob("*.jpg"))
    return hr.Recipe(
        source=hr.files(paths, targets=range(first, first + len(paths)), max_bytes=max_bytes),
        target_transform=of_targets,
        decode=hr.image.decode(),
        augment=[
            hr.image.random_resized_crop(48),
            hr.image.horizontal_flip(),
            hr.image.color_jitter(0.3),
            *steps,
        ],
    )


OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 1}


def epochs(loader: Any, count: int = 3) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    return [[(images.clone(), labels.clone()) for images, labels in loader] for _ in range(count)]


def same(one: Any, other: Any) -> bool:
    return all(
        torch.equal(mine[0], theirs[0]) and torch.equal(mine[1], theirs[1])
        for left, right in zip(one, other, strict=True)
        for mine, theirs in zip(left, right, strict=True)
    )


@pytest.fixture(scope="module")
def wanted(photos: Path) -> Any:
    """What the job gives alone."""
    with hr.DataLoader(recipe(photos), **OPTIONS, share=False) as loader:
        return epochs(loader)


class Transport(NamedTuple):
    """How rows come."""

    name: str
    log: Path
    """Where it is noted how many bytes NIXL wrote, for each grant."""

    @property
    def written(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture(params=[TLS, pytest.param(NIXL, marks=needs_nixl)])
def transport(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Transport:
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    monkeypatch.setenv("UCX_LOG_LEVEL", "fatal")  # (it has much to say of those who are killed)
    log = tmp_path / "written"
    wait = NixlReceiving._wait

    def noted(self: NixlReceiving, *args: Any) -> int:
        nbytes = wait(self, *args)
        with log.open("a") as file:
            file.write(f"{nbytes}\n")
        return nbytes

    monkeypatch.setattr(NixlReceiving, "_wait", noted)  # (agents are forked)
    return Transport(request.param, log)


def test_rows_are_the_same_bit_for_bit_wherever_they_are_made(
    servers: Servers, photos: Path, wanted: Any, transport: Transport
) -> None:
    servers.help("n1", 1, transport.name)
    servers.help("n2", 1, transport.name)
    servers.tell()
    with hr.DataLoader(recipe(photos), **OPTIONS) as loader:
        got = epochs(loader)
        assert same(got, wanted)
        assert helped(loader) > 0
        stats = loader.stats()
    assert stats.bad_samples == 0
    assert "prepared elsewhere" in str(stats)
    assert bool(transport.written) == (transport.name == NIXL)


@pytest.mark.slow
def test_helpers_that_are_killed_cost_time_and_no_row(
    servers: Servers, photos: Path, wanted: Any, transport: Transport
) -> None:
    helpers = servers.help("n1", 2, transport.name)
    servers.tell()
    helped = killed = 0
    for _ in range(20):
        with hr.DataLoader(recipe(photos), **OPTIONS) as loader:
            before = 0
            for epoch, batches in enumerate(wanted):
                for (images, labels), (right, numbers) in zip(loader, batches, strict=True):
                    assert torch.equal(images, right) and torch.equal(labels, numbers), epoch
                    alive = [one for one in helpers._processes if one.poll() is None]
                    if alive and loader.stats().pool.helped > before:  # (some that help, that is)
                        before = loader.stats().pool.helped
                        alive[0].kill()
                        killed += 1
                helpers.look()
                servers.nodes["n1"] = msgspec.structs.replace(servers.nodes["n1"], helpers=helpers.all)
                servers.tell()
            helped += loader.stats().pool.helped
        if killed >= 3 and helped > 0:
            break
    assert killed >= 3
    assert helped > 0
    assert bool(transport.written) == (transport.name == NIXL)


def test_a_helper_that_hangs_is_not_waited_for(
    servers: Servers, photos: Path, wanted: Any, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_PATIENCE", 0.5)
    monkeypatch.setattr(lines, "_TIMES", 0.0)
    helpers = servers.help("n1", 1, transport.name)
    servers.tell()
    with hr.DataLoader(recipe(photos), **OPTIONS) as loader:
        iterator = iter(loader)
        first = [tuple(one.clone() for one in next(iterator)) for _ in range(3)]
        os.kill(helpers._processes[0].pid, signal.SIGSTOP)
        rest = [tuple(one.clone() for one in batch) for batch in iterator]
        assert same([first + rest], wanted[:1])
        assert same(epochs(loader, 2), wanted[1:])
    os.kill(helpers._processes[0].pid, signal.SIGCONT)


def test_no_batch_waits_for_a_helper_that_never_gets_to_it(
    servers: Servers, photos: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Helpers run when nobody else does: on a busy node, never. This one takes what it is granted, and is silent."""
    monkeypatch.setattr(lines, "_PATIENCE", 3600.0)
    monkeypatch.setattr(granted, "_FIRST", 8 * 3 * 48 * 48)  # (an order has room, and no second one)
    monkeypatch.setattr(granted, "_MOST", 8 * 3 * 48 * 48)
    taken: list[Grant] = []
    monkeypatch.setattr(HelperServer, "_work", lambda self: None)
    monkeypatch.setattr(HelperServer, "_take", _noting(HelperServer._take, taken))
    silent = HelperServer(Config("n1", "127.0.0.1", TOKEN, servers.nodes["n1"].socket)).listen()
    servers.nodes["n1"] = msgspec.structs.replace(servers.nodes["n1"], helpers=(silent,))
    servers.tell()
    with hr.DataLoader(recipe(photos), **OPTIONS) as loader:
        assert same(epochs(loader), wanted)
        for _ in range(200):
            if taken:
                break
            epochs(loader, 1)
        assert loader.stats().pool.helped == 0
        assert len(taken) == 1, "it was tried, once"
        # Others that help have all the room there is, whatever was granted to this one.
        servers.help("n2", 1)
        servers.tell()
        assert wait_until(lambda: helps_in_an_epoch(loader), 60)
    assert len(taken) <= 2


def helps_in_an_epoch(loader: Any) -> bool:
    epochs(loader, 1)
    return bool(loader.stats().pool.helped)


def _noting(take: Any, taken: list[Grant]) -> Any:
    def noted(self: HelperServer, client: Any, data: bytes) -> None:
        request = decode_request(data)
        if isinstance(request, Grant):
            taken.append(request)
        take(self, client, data)

    return noted


def test_an_agent_that_is_killed_is_replaced(
    servers: Servers, photos: Path, wanted: Any, transport: Transport
) -> None:
    servers.help("n1", 1, transport.name)
    servers.tell()
    with hr.DataLoader(recipe(photos), **OPTIONS) as loader:
        for epoch, batches in enumerate(wanted):
            for number, ((images, labels), (right, numbers)) in enumerate(zip(loader, batches, strict=True)):
                assert torch.equal(images, right) and torch.equal(labels, numbers)
                if number == 4:
                    os.kill(loader._epochs.session.host.workers[0].pid, signal.SIGKILL)
            assert epoch < 3
        # (a death at the very end, when all batches are there, may not be noticed any more)
        assert loader.stats().restarts >= 2


@pytest.mark.slow
def test_workers_that_are_killed_while_others_help_cost_time_and_no_row(
    servers: Servers, photos: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have claimed orders that are needed later than those that others are at."""
    monkeypatch.setattr(Few, "skip", lambda self, taken: 5)
    servers.help("n1", 1)
    servers.tell()
    dice = random.Random(5)
    with hr.DataLoader(recipe(photos), **{**OPTIONS, "num_workers": 2}) as loader:
        helped = 0
        for number in range(60):
            loader.set_epoch(number % len(wanted))
            for (images, labels), (right, numbers) in zip(loader, wanted[number % len(wanted)], strict=True):
                assert torch.equal(images, right) and torch.equal(labels, numbers)
                workers = [one for one in loader._epochs.session.host.workers if one.id != AGENT]
                if workers and dice.random() < 0.2:
                    with contextlib.suppress(
                        ProcessLookupError
                    ):  # (one that was killed before, and is collected)
                        os.kill(dice.choice(workers).pid, signal.SIGKILL)
            helped = loader.stats().pool.helped
            if helped and loader.stats().restarts > 10:
                break
        assert helped > 0 and loader.stats().restarts > 10


def helped_by_tls(servers: Servers, photos: Path, wanted: Any) -> None:
    """Rows come from the helper of n1, of which it is said that it can write, and are right."""
    servers.help("n1", 1)
    (helper,) = servers.nodes["n1"].helpers
    told = msgspec.structs.replace(helper, nixl=True)
    servers.nodes["n1"] = msgspec.structs.replace(servers.nodes["n1"], helpers=(told,))
    servers.tell()
    with hr.DataLoader(recipe(photos), **OPTIONS) as loader:
        assert same(epochs(loader), wanted)
        for _ in range(200):
            if loader.stats().pool.helped:
                break
            epochs(loader, 1)
        assert loader.stats().pool.helped > 0


def test_an_agent_without_nixl_says_so_once_and_does_without(
    servers: Servers, photos: Path, wanted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"

    def warn(text: str, *_: Any, **__: Any) -> None:
        with said.open("a") as file:
            file.write(f"{text}\n")

    monkeypatch.setattr(transports, "try_nixl", lambda: "NIXL is not installed; install it")
    monkeypatch.setattr("warnings.warn", warn)  # (agents are forked)
    helped_by_tls(servers, photos, wanted)
    found = [line for line in said.read_text().splitlines() if "NIXL" in line]
    assert found == ["rows from other nodes come over TLS: NIXL is not installed; install it"]


@needs_nixl
def test_a_helper_that_cannot_write_after_all(servers: Servers, photos: Path, wanted: Any) -> None:
    helped_by_tls(servers, photos, wanted)


def test_a_helper_without_nixl_does_without(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nixl").mkdir()
    (tmp_path / "nixl/__init__.py").write_text("raise ImportError('no backend')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.pathsep.join(sys.path)}")
    assert [helper.nixl for helper in servers.help("n1", 1, NIXL).all] == [False]
    assert "rows go over TLS: NIXL is not installed (no backend)" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"gpu_decode": 1.0, "gpu_cache": "64MiB"},
        {"gpu_decode": 0.5, "gpu_cache": "1MiB", "cache": "8MiB"},
    ],
    ids=str,
)
def test_rows_for_a_device(
    servers: Servers, photos: Path, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Helpers make rows whole, also those that workers would leave to the device; last steps are done there."""
    stand_in(Own(), monkeypatch.setattr)  # (this machine takes the place of the device)
    paths = sorted(photos.glob("*.jpg"))
    made = hr.Recipe(
        hr.files(paths, range(len(paths))),
        decode=hr.image.decode(reduce=False),
        augment=[
            hr.image.random_resized_crop(48),
            hr.image.horizontal_flip(),
            hr.image.color_jitter(0.3),
            hr.image.normalise((0.4, 0.5, 0.6), (0.2, 0.2, 0.2)),
        ],
    )
    with hr.DataLoader(made, **OPTIONS, share=False) as loader:
        right = epochs(loader)
    servers.help("n1", 1)
    servers.tell()
    with hr.DataLoader(made, **OPTIONS, device="cuda", **more) as loader:
        for _ in range(20):
            loader.set_epoch(0)
            for mine, theirs in zip(epochs(loader), right, strict=True):
                for (images, labels), (same_images, same_labels) in zip(mine, theirs, strict=True):
                    assert torch.equal(labels, same_labels)
                    assert torch.allclose(images, same_images, rtol=0, atol=1e-5)
            if loader.stats().pool.helped:
                break
        assert loader.stats().pool.helped > 0


@pytest.mark.slow
def test_bad_samples_are_named_wherever_they_are_met(servers: Servers, tmp_path: Path, photos: Path) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    for path in sorted(photos.glob("*.jpg"))[:48]:
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "007.jpg").write_bytes(b"no image")
    servers.help("n1", 1)
    servers.tell()
    with hr.DataLoader(recipe(folder), **OPTIONS, on_error="skip", error_budget=20) as loader:
        for _ in range(6):
            seen = sorted(int(one) for _, labels in loader for one in labels)
            assert seen == [one for one in range(48) if one != 7]
        assert [bad.index for bad in loader.bad_samples] == [7]


def test_a_sample_is_not_bad_because_a_helper_cannot_prepare_it(
    servers: Servers, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    told.touch()
    monkeypatch.setattr(
        lines.warnings, "warn", lambda text, **_: told.write_text(text)
    )  # (the agent is forked)
    with monkeypatch.context() as broken:
        broken.setenv(user_steps.FAILS, "1")
        servers.help("n1", 1, code=("tests.cluster.user_steps",))
    servers.tell()
    own = recipe(photos, user_steps.reading)
    with hr.DataLoader(own, **OPTIONS, share=False) as loader:
        wanted = epochs(loader)
    with hr.DataLoader(own, **OPTIONS) as loader:
        assert same(epochs(loader), wanted)
        for _ in range(200):
            if told.read_text():
                break
            epochs(loader, 1)
        assert not loader.bad_samples
    said = told.read_text()
    assert (
        "node n1 (127.0.0.1) prepares no rows for this job: samples that are good here are bad there" in said
    )
    assert "Input/output error" in said


def test_recipes_with_code_of_the_users_stay_at_home(servers: Servers, photos: Path) -> None:
    servers.help("n1", 1)
    servers.tell()
    with hr.DataLoader(recipe(photos, slow), **OPTIONS) as loader:
        epochs(loader, 2)
        stats = loader.stats()
        assert stats.pool.samples > 0 and stats.pool.helped == 0
        assert all(worker.id >= 0 for worker in loader._epochs.session.host.workers)


def test_a_job_that_wants_no_help_gets_none(
    servers: Servers, photos: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.help("n1", 1)
    servers.tell()
    monkeypatch.setenv("HEADRACE_HELP", "0")
    with hr.DataLoader(recipe(photos), **OPTIONS) as loader:
        assert same(epochs(loader), wanted)
        stats = loader.stats()
        assert stats.pool.samples > 0 and stats.pool.helped == 0
        assert all(worker.id >= 0 for worker in loader._epochs.session.host.workers), "there is no agent"


def helped(loader: Any) -> int:
    """Rows that helpers made, once there are some."""
    for _ in range(200):
        if loader.stats().pool.helped:
            break
        epochs(loader, 1)
    return int(loader.stats().pool.helped)


@pytest.mark.parametrize(
    "steps",
    [pytest.param((user_steps.noisy,), marks=pytest.mark.slow), (user_steps.half, user_steps.noisy)],
)
def test_code_that_is_listed_runs_elsewhere_and_draws_what_it_draws_at_home(
    servers: Servers, photos: Path, steps: Any
) -> None:
    own = recipe(photos, *steps)
    with hr.DataLoader(own, **OPTIONS, share=False) as loader:
        wanted = epochs(loader)
    servers.help("n1", 1, code=("tests.cluster.user_steps",))
    servers.help("n2", 1, code=("tests.cluster",))
    servers.tell()
    with hr.DataLoader(own, **OPTIONS) as loader:
        assert same(epochs(loader), wanted)
        assert helped(loader) > 0 and loader.stats().bad_samples == 0


def test_jobs_with_other_labels_for_the_same_files_get_their_own(
    servers: Servers, photos: Path, wanted: Any
) -> None:
    servers.help("n1", 1)
    servers.tell()
    with hr.DataLoader(recipe(photos), **OPTIONS) as loader:
        assert same(epochs(loader), wanted)
        assert helped(loader) > 0
    with hr.DataLoader(recipe(photos, first=1000), **OPTIONS) as loader:
        right = [[(images, labels + 1000) for images, labels in epoch] for epoch in wanted]
        assert same(epochs(loader), right)
        while not loader.stats().pool.helped:
            for _, labels in loader:
                assert labels.min() >= 1000


def taught(folder: Path, **options: Any) -> Teach:
    """What helpers are told of a job."""
    made = recipe(folder, **options)
    joined = joining.join(made.source, must=True, find_rail=lambda: None)
    assert joined is not None
    assistance = joined.assistance(made, decoded=False, tier=None, workers=1)
    layout = compile_recipe(recipe(folder), caches_decoded=False).layout
    assert assistance is not None and layout is not None
    return assistance.teach(layout)


def test_jobs_that_may_read_more_of_the_same_files_are_taught_anew(servers: Servers, photos: Path) -> None:
    one, other = taught(photos, max_bytes="100B"), taught(photos)
    assert (one.dataset, one.key) == (other.dataset, other.key)
    assert one.recipe != other.recipe and taught(photos).recipe == other.recipe


def test_a_helper_refuses_labels_of_its_own(
    servers: Servers, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table says which files there are, and their labels; on another node it may be one of before."""
    servers.help("n1", 1, code=("tests.cluster",))
    servers.tell()
    one, other = taught(photos), taught(photos, first=1000)
    assert one.dataset == other.dataset and one.recipe != other.recipe
    (helper,) = servers.nodes["n1"].helpers
    listed = taught(photos, of_targets=user_steps.even)
    monkeypatch.setattr(user_steps.even, "__code__", slow.__code__)
    code = taught(photos, of_targets=user_steps.even)
    for teach in (
        msgspec.structs.replace(other, source=one.source),
        msgspec.structs.replace(listed, key=code.key),
    ):
        connection = wire.connect_tls(("127.0.0.1", helper.port), helper.certificate, 5.0)
        greet(connection, TOKEN)
        with pytest.raises(HostRefused, match="other code, other targets or another headrace"):
            ask(connection, teach, 20.0)


@pytest.mark.slow
def test_other_versions_of_the_same_code_are_refused(
    servers: Servers, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows would look alike, and differ."""
    servers.help("n1", 1, code=("tests.cluster",))
    servers.tell()
    monkeypatch.setattr(user_steps.noisy, "__code__", slow.__code__)
    own = recipe(photos, user_steps.noisy)
    with hr.DataLoader(own, **OPTIONS, share=False) as loader:
        wanted = epochs(loader)
    with hr.DataLoader(own, **OPTIONS) as loader:
        assert same(epochs(loader), wanted)
        epochs(loader, 12)
        assert loader.stats().pool.helped == 0


@pytest.mark.slow
def test_code_that_is_not_listed_is_refused_and_the_job_says_so(
    servers: Servers, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    told.touch()
    # (the agent is a process of its own)
    monkeypatch.setattr(lines.warnings, "warn", lambda text, **_: told.write_text(text))
    servers.help("n1", 1, code=("tests.cluster.nodes",))
    servers.tell()
    with hr.DataLoader(recipe(photos, user_steps.noisy), **OPTIONS) as loader:
        for _ in range(200):
            epochs(loader, 1)
            if told.read_text():
                break
        assert loader.stats().pool.helped == 0
    said = told.read_text()
    assert "node n1 (127.0.0.1) prepares no rows for this job" in said
    assert "tests.cluster.user_steps:noisy is not of the modules whose code may be imported" in said


def test_who_may_grant(servers: Servers, photos: Path) -> None:
    helpers = servers.help("n1", 1)
    servers.tell()
    (helper,) = helpers.all

    def connect() -> wire.Wire:
        return wire.connect_tls(("127.0.0.1", helper.port), helper.certificate, 5.0)

    with pytest.raises(HostRefused, match="token"):
        greet(connect(), "a guess")
    connection = connect()
    greet(connection, TOKEN)
    with pytest.raises(HostRefused, match="not known here"):
        ask(connection, Grant(1, "x", 0, 0, 0, np.arange(3).tobytes()), 5.0)
    found = recipe(photos)
    pool = servers.pool(found.source)
    definition = json.dumps(found.to_dict(source=False)).encode()
    fields = json.dumps(compile_recipe(found, caches_decoded=False).layout.describe()).encode()
    key = found.rows_key
    own = json.dumps(recipe(photos, slow).to_dict(source=False)).encode()
    for teach in (
        Teach("a", "other", pool.definition, definition, False, fields, key),
        Teach("b", pool.dataset, pool.definition, own, False, fields, key),
        Teach("c", pool.dataset, pool.definition, b"{", False, fields, key),
        Teach("d", pool.dataset, b"[]", definition, False, fields, key),
        Teach("e", pool.dataset, pool.definition, definition, False, b"[]", key),
        Teach("f", pool.dataset, pool.definition, definition, False, fields, "another"),
    ):  # fmt: skip
        connection = connect()
        greet(connection, TOKEN)
        with pytest.raises(HostRefused):
            ask(connection, teach, 20.0)
    good = Teach("e", pool.dataset, pool.definition, definition, False, fields, key)
    for samples, words in (
        (b"123", b""),
        (b"", b""),
        (np.array([PHOTOS]).tobytes(), b""),
        (bytes(8), bytes(16)),
    ):
        connection = connect()
        greet(connection, TOKEN)
        ask(connection, good, 20.0)
        with pytest.raises(HostRefused):
            ask(connection, Grant(1, "e", 0, 0, 0, samples, words), 5.0)
    assert helpers._processes[0].poll() is None


def test_a_helper_that_has_many_connections_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_module, "_MOST_CLIENTS", 2)
    helper = HelperServer(Config("n1", "127.0.0.1", TOKEN, "n1.sock")).listen()

    def taken_in() -> wire.Wire | None:
        try:
            connection = wire.connect_tls(("127.0.0.1", helper.port), helper.certificate, 20.0)
            greet(connection, TOKEN)
        except members_module.TROUBLE:
            return None
        return connection

    first, second = taken_in(), taken_in()
    assert first is not None and second is not None
    before = threading.active_count()
    assert taken_in() is None and taken_in() is None
    assert threading.active_count() == before, "no thread is made for them"
    first.shut()
    assert wait_until(lambda: taken_in() is not None), "and there is room for another again"
    second.shut()


def test_a_helper_for_whom_no_thread_may_be_started_takes_others_in(monkeypatch: pytest.MonkeyPatch) -> None:
    made = HelperServer(Config("n1", "127.0.0.1", TOKEN, "n1.sock"))
    helper = made.listen()
    start, refused = threading.Thread.start, threading.Event()

    def may_not(thread: threading.Thread) -> None:
        if "_attend" not in thread.name or refused.is_set():
            start(thread)
            return
        refused.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", may_not)
    with pytest.raises(OSError):
        wire.connect_tls(("127.0.0.1", helper.port), helper.certificate, 20.0)
    assert refused.is_set() and made._clients == 0
    connection = wire.connect_tls(("127.0.0.1", helper.port), helper.certificate, 20.0)
    greet(connection, TOKEN)
    connection.close()


class AccessDenied(Exception):
    """Of a library that talks to storage."""


@pytest.mark.parametrize("error", [AccessDenied, SystemExit])
def test_whatever_is_wrong_with_a_recipe_is_said(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Whoever hears of no reason tries again, and the data are listed again."""
    monkeypatch.setattr(helper_module, "Known", mock.Mock(side_effect=error("it may not list the data")))
    helper = HelperServer(Config("n1", "127.0.0.1", TOKEN, "n1.sock")).listen()
    connection = wire.connect_tls(("127.0.0.1", helper.port), helper.certificate, 20.0)
    greet(connection, TOKEN)
    with pytest.raises(HostRefused, match=f"{error.__name__}: it may not list the data"):
        ask(connection, Teach("a recipe", "data", b"", b"", False, b"", ""), 20.0)
    connection.close()


class Ready:
    """A recipe that is ready, as far as a helper's list of them goes."""

    row, layout = 1, mock.Mock(**{"describe.return_value": []})

    def __init__(self, samples: int = 1) -> None:
        self.samples = samples


def test_a_helper_forgets_what_was_not_used_for_longest() -> None:
    recipes: Any = Recipes()
    first = Ready()
    recipes.keep("0", first)
    for number in range(1, Recipes.MOST + 2):
        assert recipes.has_room()
        recipes.keep(str(number), Ready(10**9))
        assert recipes.find("0") is first, "it is used all the time"
    assert [number for number in range(Recipes.MOST + 2) if recipes.find(str(number)) is None] == [1, 2]
    assert recipes.find("another") is None


@pytest.mark.parametrize("samples", [1, Recipes.MOST_SAMPLES // Recipes.MOST])
def test_a_helper_forgets_nothing_that_somebody_has(samples: int) -> None:
    recipes: Any = Recipes()
    held: list[Ready] = []
    while recipes.has_room():
        held.append(Ready(samples))
        recipes.keep(str(len(held)), held[-1])
    assert len(held) == (Recipes.MOST_USED if samples == 1 else Recipes.MOST)
    assert [recipes.find(str(number + 1)) for number in range(len(held))] == held
    del held[0]
    assert recipes.has_room() and recipes.find("1") is None
    assert [recipes.find(str(number + 2)) for number in range(len(held))] == held


def test_what_was_used_last_is_not_forgotten_for_one_that_is_refused() -> None:
    recipes: Any = Recipes()
    held: list[Ready] = []
    while recipes.has_room():
        held.append(Ready())
        recipes.keep(str(len(held)), held[-1])
    assert not recipes.has_room()
    count = len(held)
    held.clear()  # (they come back before long)
    there = [number for number in range(1, count + 1) if recipes.find(str(number)) is not None]
    assert there == list(range(count + 1 - Recipes.MOST, count + 1))


def test_a_recipe_is_made_ready_once_for_those_who_are_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """And who wants another one tries other nodes, where there are too many."""
    monkeypatch.setattr(Recipes, "MOST", 1)
    monkeypatch.setattr(Recipes, "MOST_USED", 3)
    made: list[str] = []

    def known(teach: Teach, *_: Any) -> Any:
        made.append(teach.recipe)
        return Ready()

    monkeypatch.setattr(helper_module, "Known", known)
    helper = HelperServer(Config("n1", "127.0.0.1", TOKEN, "n1.sock")).listen()

    def learn(recipe: str) -> wire.Wire:
        connection = wire.connect_tls(("127.0.0.1", helper.port), helper.certificate, 20.0)
        greet(connection, TOKEN)
        try:
            ask(connection, Teach(recipe, "data", b"", b"", False, b"[]", ""), 20.0)
        except HostRefused:
            connection.close()
            raise
        return connection

    first, *others = [learn(recipe) for recipe in "abc"]
    others += [learn(recipe) for recipe in "cba"]
    assert made == ["a", "b", "c"]
    with pytest.raises(HostRefused, match="no room for another recipe"):
        learn("d")
    first.close()
    with pytest.raises(HostRefused, match="no room for another recipe"):
        learn("d")
    others.pop().close()

    def has_room() -> bool:
        with contextlib.suppress(HostRefused):
            others.append(learn("d"))
        return made[3:] == ["d"]

    assert wait_until(has_room), "nobody uses the first one any more"
    for connection in others:
        connection.close()


@pytest.mark.slow
def test_helpers_end_with_who_started_them(servers: Servers) -> None:
    helpers = servers.help("n1", 1)
    process = helpers._processes[0]
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(10) == 0
    helpers.look()
    assert helpers._processes[0] is not process, "another takes its place, and nobody waits for it to start"

    def there() -> bool:
        helpers.look()
        return len(helpers.all) == 1

    assert wait_until(there)


def test_a_server_with_a_thousand_connections_starts_helpers_anew() -> None:
    """Their pipes have descriptors of four digits then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this process may have too few descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    out, into = os.pipe()
    try:
        helpers = Helpers(Config("n1", "127.0.0.1", TOKEN, "n1.sock"), 0)
        with open(fcntl.fcntl(out, fcntl.F_DUPFD, 1100), "rb") as pipe:
            helpers._processes.append(mock.Mock(pid=1, poll=lambda: None, stdout=pipe))
            helpers.look()
            assert not helpers.all
            os.write(into, b'[7400,"its certificate"]\n')
            helpers.look()
            assert [one.port for one in helpers.all] == [7400]
    finally:
        os.close(out)
        os.close(into)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Granted:
    """Grants of a client that a helper is to make, whose rows are what ``make`` gives."""

    def __init__(self, make: Any) -> None:
        self.known = mock.Mock(make=make, read_ahead=make)
        self.client = mock.Mock(ended=False)
        self.came, self.over = threading.Semaphore(0), threading.Semaphore(0)
        self.client.give = lambda *_: self.came.release()
        self.client.connection.shut = self.over.release

    def add(self, helper: HelperServer, count: int) -> None:
        grant, samples = Grant(1, "a recipe", 0, 0, 0, bytes(8)), np.zeros(1, np.int64)
        with helper._granted:
            for _ in range(count):
                helper._grants.append(helper_module.Waiting(grant, self.client, self.known, samples, 0.0))
            helper._granted.notify_all()


def test_whatever_ends_with_an_order_the_next_one_is_made() -> None:
    """Code of the user's may want to end its process, and libraries in Rust raise what is no ``Exception``."""
    helper = HelperServer(Config("n", "127.0.0.1", TOKEN, "n.sock"))
    bad = Granted(mock.Mock(side_effect=SystemExit))
    good = Granted(lambda _: ([], [], 0.0))
    for _ in range(8):
        bad.add(helper, 1)
        assert bad.over.acquire(timeout=20.0), "who granted it does not wait"
    bad.add(helper, 8)
    good.add(helper, 1)
    assert good.came.acquire(timeout=20.0)


def test_nothing_is_made_for_who_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_module, "_THREADS", 1)
    helper = HelperServer(Config("n", "127.0.0.1", TOKEN, "n.sock"))
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    made: list[str] = []

    def make(name: str) -> Any:
        made.append(name)
        begun.release()
        assert go_on.acquire(timeout=20.0)
        return [], [], 0.0

    first, gone, last = (Granted(lambda _, name=name: make(name)) for name in ("first", "gone", "last"))
    for one in (first, gone, last):
        one.known.read_ahead = mock.Mock()
    first.add(helper, 1)
    assert begun.acquire(timeout=20.0)
    gone.add(helper, 4)
    last.add(helper, 1)
    gone.client.ended = True
    for _ in range(2):
        go_on.release()
    assert last.came.acquire(timeout=20.0)
    assert made == ["first", "last"] and not gone.known.read_ahead.called
    last.add(helper, 3)
    assert begun.acquire(timeout=20.0) and begun.acquire(timeout=20.0)
    last.client.ended = True
    first.add(helper, 1)
    go_on.release()
    assert begun.acquire(timeout=20.0)
    assert made == ["first", "last", "last", "first"], "nor for who goes meanwhile"
    go_on.release()


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 40)), min_size=1))
def test_small_grants_that_wait_are_taken_together(granted: list[tuple[str, int]]) -> None:
    with mock.patch.object(helper_module, "_THREADS", 0):  # (nobody else takes any)
        made = helper_module.HelperServer(Config("n", "127.0.0.1", TOKEN, "n.sock"))
    known = {"a": mock.Mock(), "b": mock.Mock()}
    for number, (name, rows) in enumerate(granted):
        made._grants.append(
            helper_module.Waiting(mock.Mock(), mock.Mock(), known[name], np.zeros(rows, np.int64), number)
        )
    taken = []
    while made._grants:
        group = made._next()
        rows = sum(len(one.samples) for one in group)
        assert len({one.known for one in group}) == 1
        assert len(group) == 1 or rows <= 32
        if made._grants and made._grants[0].known is group[0].known:
            assert rows + len(made._grants[0].samples) > 32, "no fewer than could be"
        taken += [one.since for one in group]
    assert taken == list(range(len(granted))), "in their order"


@pytest.mark.slow
def test_helpers_run_when_nobody_else_does(servers: Servers) -> None:
    helpers = Helpers(Config("n1", "127.0.0.1", TOKEN, servers.nodes["n1"].socket), 1)
    try:
        helpers.look(wait=True)
        process = Path(f"/proc/{helpers._processes[0].pid}")
        session = process / "autogroup"
        if session.exists():  # (sessions share CPUs before threads do, and this one is not to have its share)
            until = time.monotonic() + 20.0
            while "nice 19" not in session.read_text() and time.monotonic() < until:
                time.sleep(0.05)
            assert "nice 19" in session.read_text()
            assert session.read_text() != Path("/proc/self/autogroup").read_text(), "its own"
        kinds = []
        for thread in os.listdir(process / "task"):
            with contextlib.suppress(ProcessLookupError):  # (the one that saw to that has just ended)
                kinds.append(os.sched_getscheduler(int(thread)))
        assert len(kinds) > 1 and set(kinds) == {os.SCHED_IDLE}
    finally:
        helpers.close()
