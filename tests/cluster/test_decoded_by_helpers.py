"""Helpers of jobs with ``tier="cluster"``: they find decoded samples where the job's own workers find them, and give
them there; without it they do neither."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import headrace as hr
from headrace.cache import extents
from headrace.cache.arena import Arena
from headrace.channel import wire
from headrace.cluster import joining, members
from headrace.cluster.lines import Assistance
from headrace.cluster.members import answer, ask, greet
from headrace.cluster.messages import KEY, Find, Given, Grant, Opened, Rows, Teach, Want, encode
from headrace.cluster.server import NodeServer
from headrace.cluster.taught import Bench, Known
from headrace.core.errors import ProtocolError
from headrace.core.forms import Form
from headrace.engine.board import Board
from headrace.engine.task import RecipeTask
from headrace.loader.disk_tier import DiskOption, use_disk
from headrace.planning import Staff, moving, peers
from headrace.recipes.compile import compile_recipe
from headrace.sources.identity import identities_of
from tests.cluster.nodes import TOKEN, Servers, forget_members, write_photos
from tests.loader import pictures

PHOTOS = 64
ALL = np.arange(PHOTOS)
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 1}


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
    monkeypatch.setattr(joining, "find_members", lambda **_: (here, members.members_of(here)))
    yield made
    forget_members()
    made.close()


class Asked:
    """What nodes are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.encoded: set[int] = set()
        self.finds = 0
        give, find = NodeServer._give, NodeServer._find

        def noted_give(server: NodeServer, connection: wire.Wire, want: Want) -> None:
            self.encoded |= set(np.frombuffer(want.samples, np.int64).tolist())
            give(server, connection, want)

        def noted_find(server: NodeServer, connection: wire.Wire, request: Find) -> None:
            self.finds += 1
            find(server, connection, request)

        monkeypatch.setattr(NodeServer, "_give", noted_give)
        monkeypatch.setattr(NodeServer, "_find", noted_find)


@pytest.fixture
def asked(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def recipe(folder: Path) -> hr.Recipe:
    paths = sorted(folder.glob("*.jpg"))
    return hr.Recipe(
        source=hr.files(paths, targets=range(len(paths))),
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(48), hr.image.horizontal_flip(), hr.image.color_jitter(0.3)],
    )


def told(folder: Path, *, tier: bool = True, measured: bool = False) -> Teach:
    """What the agent of a job tells a helper. Without ``tier`` the job has a cache of its own for decoded samples.
    ``measured``: nodes hold them where that pays."""
    made = recipe(folder)
    joined = joining.join(made.source, must=True, find_rail=lambda: None)
    assert joined is not None
    option = DiskOption("cluster", 0, "decoded", remote=True) if tier else None
    use = use_disk(option, made, cache={}, staff=Staff(1, 1), pool=joined, nodes=measured)
    assistance = joined.assistance(made, decoded=True, tier=use, workers=1)
    layout = compile_recipe(made, caches_decoded=True).layout
    assert isinstance(assistance, Assistance) and layout is not None
    return assistance.teach(layout)


class Lent:
    """A helper, a process of its own, as the agent of a job has it."""

    def __init__(self, servers: Servers, teach: Teach) -> None:
        self.process = servers.help("n1", 1)._processes[0]
        servers.tell()
        (self._helper,) = servers.nodes["n1"].helpers
        self._teach = teach
        self.connect()

    def connect(self) -> None:
        """And teach it."""
        helper = self._helper
        self._wire = wire.connect_tls(("127.0.0.1", helper.port), helper.certificate, 5.0)
        greet(self._wire, TOKEN)
        assert isinstance(ask(self._wire, self._teach, 60.0)[0], Opened)

    def make(self, epoch: int, rows: int = 8) -> list[bytes]:
        """Rows of all samples, by grants of so many that are all there at once."""
        grants = granted(self._teach, epoch, rows)
        for grant in grants:
            self._wire.send(encode(grant), seconds=5.0)
        found = {}
        for _ in grants:
            reply, body = answer(self._wire, 60.0)
            assert isinstance(reply, Rows) and not reply.faults, reply
            found[reply.number] = bytes(body)
        assert self.process.poll() is None
        return [found[grant.number] for grant in grants]


def granted(teach: Teach, epoch: int, rows: int) -> list[Grant]:
    return [
        Grant(number, teach.recipe, 5, epoch, number, part.tobytes())
        for number, part in enumerate(np.array_split(ALL, PHOTOS // rows))
    ]


def made_at_home(folder: Path, epoch: int, rows: int = 8) -> list[bytes]:
    """The same by who caches decoded samples alone."""
    task = RecipeTask(recipe(folder), None, None, True)
    program, arena = task.compile(), Arena()
    assert program.layout is not None
    task.layout = program.layout
    bench = Bench(arena, task.stages(arena, Board(arena)), program, program.layout)
    return [
        b"".join(field.tobytes() for field in bench.make(grant)[0])
        for grant in granted(Teach("", "", b"", b"", True, b"", ""), epoch, rows)
    ]


def held(servers: Servers) -> int:
    return sum(server.status().decoded for server in servers.servers.values())


def keys_of(folder: Path) -> list[bytes]:
    """By what nodes know decoded samples."""
    made = recipe(folder)
    key = made.share_key(Form.DECODED).encode()[:64]
    names = identities_of(made.source, ALL)
    return [hashlib.blake2b(name, digest_size=KEY, key=key).digest() for name in names]


def batches(loader: Any) -> list[np.ndarray[Any, Any]]:
    return [leaf.numpy().copy() for batch in loader for leaf in pictures.flat(batch)]


# -- whole jobs ------------------------------------------------------------------------------------------------------


def test_rows_of_jobs_are_the_same_bit_for_bit_wherever_they_are_made(servers: Servers, photos: Path) -> None:
    own = {"cache": "64MiB", "split": (0, 1, 0), "share": False}
    with hr.DataLoader(recipe(photos), **OPTIONS, **own) as loader:
        wanted = [batches(loader) for _ in range(3)]
    servers.help("n1", 1)
    servers.help("n2", 1)
    servers.tell()
    with hr.DataLoader(recipe(photos), **OPTIONS, tier="cluster") as loader:
        for epoch in range(300):
            loader.set_epoch(epoch % 3)
            assert all(map(np.array_equal, batches(loader), wanted[epoch % 3]))
            if loader.stats().pool.helped and held(servers) == PHOTOS and epoch >= 2:
                break
        stats = loader.stats()
    assert stats.pool.helped > 0 and stats.bad_samples == 0
    assert held(servers) == PHOTOS


def test_a_helper_finds_what_workers_of_jobs_have_decoded(
    servers: Servers, photos: Path, asked: Asked
) -> None:
    with hr.DataLoader(recipe(photos), **OPTIONS, tier="cluster") as loader:
        batches(loader)
    assert len(asked.encoded) == PHOTOS and held(servers) == PHOTOS
    asked.encoded.clear()
    helper = Lent(servers, told(photos))
    assert helper.make(1) == made_at_home(photos, 1)
    assert helper.make(2, rows=2) == made_at_home(photos, 2, rows=2)
    assert not asked.encoded


def test_workers_of_jobs_find_what_a_helper_has_decoded(servers: Servers, photos: Path, asked: Asked) -> None:
    helper = Lent(servers, told(photos))
    assert helper.make(1, rows=2) == made_at_home(photos, 1, rows=2)
    assert held(servers) == PHOTOS
    asked.encoded.clear()
    with hr.DataLoader(recipe(photos), **OPTIONS, tier="cluster") as loader:
        batches(loader)
        stats = loader.stats()
    assert stats.disk is not None and stats.disk.hits + stats.pool.helped >= PHOTOS
    assert not asked.encoded


def test_a_helper_finds_out_by_itself_where_it_pays(
    servers: Servers, photos: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    teach = told(photos, tier=False, measured=True)
    assert len({one.recipe for one in (teach, told(photos), told(photos, tier=False))}) == 3

    def make(known: Known, epoch: int) -> None:
        for grant, right in zip(granted(teach, epoch, 8), made_at_home(photos, epoch), strict=True):
            rows, faults, _ = known.make(grant)
            assert b"".join(field.tobytes() for field in rows) == right and not faults

    monkeypatch.setattr(moving, "_BYTE", 1.0)  # (nothing is worth moving)
    known = Known(teach, servers.nodes["n1"].socket, ())
    make(known, 1)
    assert held(servers) == 8 and not asked.finds, "those from which it is known how large they are"
    monkeypatch.setattr(moving, "_BYTE", 1e-15)
    make(known, 2)
    asked.encoded.clear()
    make(known, 3)
    assert held(servers) == PHOTOS and not asked.encoded


# -- what is not there, or not whole ---------------------------------------------------------------------------------


def test_without_the_tier_helpers_leave_it_alone(servers: Servers, photos: Path, asked: Asked) -> None:
    """The job may cache decoded samples itself: its rows look as with the tier."""
    helper = Lent(servers, told(photos, tier=False))
    assert helper.make(1) == made_at_home(photos, 1)
    assert len(asked.encoded) == PHOTOS
    assert not asked.finds and not held(servers)
    assert told(photos, tier=False).recipe != told(photos).recipe, "a helper knows them apart"


def test_a_helper_decodes_again_what_is_damaged(servers: Servers, photos: Path, asked: Asked) -> None:
    helper = Lent(servers, told(photos))
    helper.make(1)
    asked.encoded.clear()
    dice = np.random.default_rng(1)
    samples = {key: sample for sample, key in enumerate(keys_of(photos))}
    damaged = set()
    for server in servers.servers.values():
        for group in server.memory._groups.values():
            for number, (key, kept) in enumerate(group.kept.items()):
                if number % 3 == 0:
                    server.memory._view[kept.start : kept.start + 64] = dice.bytes(64)
                elif number % 3 == 1:
                    kept.length = 3 if number % 2 else kept.length - 200
                if number % 3 < 2:
                    damaged.add(samples[key])
    assert helper.make(2, rows=2) == made_at_home(photos, 2, rows=2)
    assert asked.encoded == damaged


def test_a_helper_decodes_again_what_is_no_image(servers: Servers, photos: Path, asked: Asked) -> None:
    """Nothing is damaged there; something else has put it there. What is right takes its place."""
    teach = told(photos)
    helper = Lent(servers, teach)
    helper.make(1)
    strange = b"".join(bytes(piece) for piece in extents.dump(np.zeros(5)) or ())
    for server in servers.servers.values():
        for group in server.memory._groups.values():
            for kept in group.kept.values():
                server.memory._view[kept.start : kept.start + len(strange)] = strange
    asked.encoded.clear()
    assert helper.make(2, rows=2) == made_at_home(photos, 2, rows=2)
    assert len(asked.encoded) == PHOTOS == held(servers)
    asked.encoded.clear()
    assert helper.make(3) == made_at_home(photos, 3)
    assert not asked.encoded


def lengths(count: int, each: int) -> bytes:
    return np.full(count, each, np.int64).tobytes()


@pytest.mark.parametrize(
    ("said", "body"),
    [
        (lambda count: None, b""),
        (lambda count: lengths(count + 1, -1), b""),
        (lambda count: lengths(count, 8), b"other"),
        (lambda count: lengths(count, -2), b""),
        (lambda count: b"odd", b""),
    ],
    ids=["nothing", "of more", "other bytes", "no length", "no lengths"],
)
def test_what_nodes_answer_need_not_be_true(
    servers: Servers, photos: Path, monkeypatch: pytest.MonkeyPatch, said: Any, body: bytes
) -> None:
    def lies(server: NodeServer, connection: wire.Wire, request: Find) -> None:
        found = said(len(request.keys) // KEY)
        if found is None:
            raise ProtocolError("it refuses")
        server._reply(connection, Given(found), [body] if body else [])

    monkeypatch.setattr(NodeServer, "_find", lies)
    helper = Lent(servers, told(photos))
    assert helper.make(1) == made_at_home(photos, 1)
    assert helper.make(2, rows=2) == made_at_home(photos, 2, rows=2)


def test_small_grants_are_looked_for_together(servers: Servers, photos: Path, asked: Asked) -> None:
    known = Known(told(photos), servers.nodes["n1"].socket, ())
    for epoch in (1, 2):
        wanted = made_at_home(photos, epoch, rows=2)
        asked.finds, asked.encoded = 0, set()
        known.read_ahead(ALL)
        assert asked.finds == len(servers.nodes), "each node once"
        for grant, right in zip(granted(told(photos), epoch, 2), wanted, strict=True):
            rows, faults, _ = known.make(grant)
            assert b"".join(field.tobytes() for field in rows) == right and not faults
        assert asked.finds == len(servers.nodes)
        assert len(asked.encoded) == (PHOTOS if epoch == 1 else 0)
    # What was got ahead is used once, and no more is known of it.
    rows, faults, _ = known.make(granted(told(photos), 2, 2)[0])
    assert b"".join(field.tobytes() for field in rows) == wanted[0] and asked.finds > len(servers.nodes)


def test_whatever_was_said_no_other_pixels_are_given_to_nodes(servers: Servers, photos: Path) -> None:
    """A job with the tier caches decoded samples. One that says it does not would be taken by its word, and what its
    helpers decode, at a scale that is right for one crop, be everybody's."""
    teach = told(photos)
    contrary = msgspec.structs.replace(teach, decoded=False)
    known = Known(contrary, servers.nodes["n1"].socket, ())
    for grant in granted(teach, 1, 8):
        known.make(grant)
    kept = [
        extents.load(server.memory._view[one.start : one.start + one.length]).shape
        for server in servers.servers.values()
        for group in server.memory._groups.values()
        for one in group.kept.values()
    ]
    assert len(kept) == PHOTOS and len(set(kept)) == 1
