"""Decoded samples in the memory of a cluster's nodes: decoded once for all, and nobody's loss."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.channel import wire
from headrace.cluster import joining, members
from headrace.cluster.members import ask, greet
from headrace.cluster.messages import MOST_PUT, Find, Given, Message, Put, Refused, Took, decode_reply, encode
from headrace.core.errors import HostRefused, OptionError
from headrace.planning import moving, peers
from tests.cluster.nodes import TOKEN, Servers, forget_members, write_large_photos, write_photos
from tests.loader import pictures

PHOTOS = 64
OPTIONS: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 1}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder, PHOTOS)
    return folder


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """Three nodes; jobs are on whichever the test says, as if Ray had started them."""
    made = Servers(tmp_path, count=3)
    monkeypatch.setattr(peers, "_SLACK", 60.0)  # (files here are faster than any node)
    at(made, "n0", monkeypatch)
    yield made
    forget_members()
    made.close()


def at(servers: Servers, node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are there from now on."""
    path = servers.nodes[node].socket
    monkeypatch.setattr(joining, "ray_node", lambda: node)
    monkeypatch.setattr(joining, "find_members", lambda **_: (path, members.members_of(path)))


def recipe(folder: Path) -> hr.Recipe:
    paths = sorted(folder.glob("*.jpg"))
    return hr.Recipe(
        source=hr.files(paths, targets=range(len(paths))),
        decode=hr.image.decode(),
        augment=[hr.image.random_resized_crop(48), hr.image.horizontal_flip()],
    )


def epochs(loader: Any, count: int = 3) -> list[list[np.ndarray[Any, Any]]]:
    return [[leaf.numpy().copy() for batch in loader for leaf in pictures.flat(batch)] for _ in range(count)]


def same(ours: Any, theirs: Any) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert all(map(np.array_equal, mine, other))


@pytest.fixture(scope="module")
def wanted(photos: Path) -> Any:
    """What a job gives that caches decoded samples, alone."""
    with hr.DataLoader(recipe(photos), **OPTIONS, cache="64MiB", split=(0, 1, 0), share=False) as loader:
        return epochs(loader)


def test_one_job_decodes_and_another_on_another_node_does_not(
    servers: Servers, photos: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hr.DataLoader(recipe(photos), **OPTIONS, tier="cluster") as loader:
        same(epochs(loader), wanted)
        first = loader.stats()
    # (the next epoch begins behind this one: some samples were wanted again before they were there)
    assert first.disk is not None and PHOTOS < first.disk.hits <= 2 * PHOTOS, first
    assert "from the cluster's memory" in str(first)
    held = [server.status() for server in servers.servers.values()]
    assert sum(one.decoded for one in held) == PHOTOS and all(one.decoded for one in held)
    at(servers, "n1", monkeypatch)
    with hr.DataLoader(recipe(photos), **OPTIONS, tier="cluster") as loader:
        same(epochs(loader), wanted)
        other = loader.stats()
    assert other.disk is not None and other.disk.hits >= 3 * PHOTOS, other
    assert servers.fetched == PHOTOS, "storage was read once"


def test_servers_that_are_lost_cost_no_sample(servers: Servers, photos: Path, wanted: Any) -> None:
    with hr.DataLoader(recipe(photos), **OPTIONS, tier="cluster") as loader:
        same(epochs(loader, 1), wanted[:1])
        servers.lose("n1")
        same(epochs(loader, 1), wanted[1:2])
        servers.lose("n2")
        servers.nodes = {"n0": servers.nodes["n0"]}
        servers.tell()
        same(epochs(loader, 1), wanted[2:])


def test_what_is_damaged_there_is_decoded_again(servers: Servers, photos: Path, wanted: Any) -> None:
    with hr.DataLoader(recipe(photos), **OPTIONS, tier="cluster") as loader:
        same(epochs(loader, 1), wanted[:1])
    dice = np.random.default_rng(1)
    for server in servers.servers.values():
        for group in server.memory._groups.values():
            for number, kept in enumerate(group.kept.values()):
                if number % 2:
                    server.memory._view[kept.start : kept.start + 64] = dice.bytes(64)
                else:
                    kept.length = 3
    with hr.DataLoader(recipe(photos), **OPTIONS, tier="cluster") as loader:
        same(epochs(loader), wanted)
        assert loader.stats().bad_samples == 0


def test_where_there_is_little_memory_encoded_samples_have_it(
    tmp_path: Path, photos: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbytes = sum(path.stat().st_size for path in photos.glob("*.jpg"))
    made = Servers(tmp_path, count=2, memory=nbytes)
    monkeypatch.setattr(peers, "_SLACK", 60.0)
    at(made, "n0", monkeypatch)
    try:
        with hr.DataLoader(recipe(photos), **OPTIONS, tier="cluster") as loader:
            same(epochs(loader), wanted)
        held = [server.status() for server in made.servers.values()]
        assert all(one.used <= one.memory for one in held)
        assert sum(dataset.held for one in held for dataset in one.datasets) == PHOTOS
        assert made.fetched == PHOTOS
    finally:
        forget_members()
        made.close()


def test_decoded_in_another_way_is_another_sample(servers: Servers, photos: Path) -> None:
    for decode in (hr.image.decode(), hr.image.decode(reduce=False)):
        paths = sorted(photos.glob("*.jpg"))
        made = hr.Recipe(
            hr.files(paths, range(len(paths))), decode=decode, augment=[hr.image.center_crop(48)]
        )
        with hr.DataLoader(made, **OPTIONS, tier="cluster") as loader:
            epochs(loader, 1)
    assert sum(server.status().decoded for server in servers.servers.values()) == 2 * PHOTOS


def test_without_a_cluster_it_is_said_what_to_write(photos: Path) -> None:
    with (
        pytest.raises(OptionError, match='share="ray"'),
        hr.DataLoader(recipe(photos), tier="cluster") as loader,
    ):
        next(iter(loader))
    with pytest.raises(OptionError, match="or 'cluster'"):
        hr.DataLoader(recipe(photos), tier="clusters")


# -- where nobody has said anything of it ----------------------------------------------------------------------------

LITTLE: dict[str, Any] = {"cache": "512KiB", "split": (0, 1, 0)}


def decoded(servers: Servers) -> int:
    return sum(server.status().decoded for server in servers.servers.values())


def test_it_is_done_where_it_is_measured_to_pay(
    servers: Servers, photos: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "_BYTE", 1e-15)  # (photos of tests are quickly decoded)
    with hr.DataLoader(recipe(photos), **{**OPTIONS, "num_workers": 0}, **LITTLE) as loader:
        same(epochs(loader), wanted)
        stats = loader.stats()
    assert decoded(servers) > PHOTOS // 2
    assert stats.disk is not None and stats.disk.hits > PHOTOS // 2, stats
    assert servers.fetched == PHOTOS


def test_it_is_not_done_where_it_does_not(
    servers: Servers, photos: Path, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "_BYTE", 1.0)
    with hr.DataLoader(recipe(photos), **{**OPTIONS, "num_workers": 0}, **LITTLE) as loader:
        same(epochs(loader), wanted)
        stats = loader.stats()
    assert 0 < decoded(servers) <= OPTIONS["batch_size"], "those from which it is known how large they are"
    assert stats.disk is None and "tier" not in str(stats)


@pytest.mark.parametrize(
    "options",
    [
        {**LITTLE, "tier": False},
        {},  # (images are prepared in another way then, which is faster)
    ],
)
def test_it_is_not_done_where_it_may_not_be(
    servers: Servers, photos: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "_BYTE", 1e-15)
    with hr.DataLoader(recipe(photos), **{**OPTIONS, "num_workers": 0}, **options) as loader:
        epochs(loader)
    assert decoded(servers) == 0


def test_workers_find_out_by_themselves(servers: Servers, tmp_path: Path) -> None:
    """Photos that take a hundred times as long to decode as to move."""
    write_large_photos(tmp_path / "large", 48)
    made = hr.Recipe(
        source=hr.folder(tmp_path / "large"),
        decode=hr.image.decode(reduce=False),
        augment=[hr.image.resize(40), hr.image.random_crop(32)],
    )
    with hr.DataLoader(made, **OPTIONS, cache="64MiB", split=(0, 1, 0), share=False) as loader:
        right = epochs(loader, 4)
    with hr.DataLoader(made, **OPTIONS, **{**LITTLE, "cache": "16KiB"}) as loader:
        same(epochs(loader, 4), right)
        stats = loader.stats()
    assert stats.disk is not None and stats.disk.hits > 0, stats
    assert servers.fetched == 48


# -- what nobody of ours would say -----------------------------------------------------------------------------------

KEYS = os.urandom(32)


def lengths(*values: int) -> bytes:
    return np.array(values, np.int64).tobytes()


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (Find("g", KEYS[:-1]), b""),
        (Find("g", bytes(16 * 70_000)), b""),
        (Find("g", KEYS), b"beside it"),
        (Put("g", KEYS, lengths(1)), b"a"),
        (Put("g", KEYS, lengths(1, 2)), b"ab"),
        (Put("g", KEYS, lengths(-1, 3)), b"ab"),
        (Put("g", KEYS, lengths(1 << 62, 1 << 62)), b"ab"),
        (Put("g", KEYS, b"odd"), b""),
        (Put("g", KEYS[:17], lengths(1)), b"a"),
    ],
)
def test_what_arrives_is_checked(servers: Servers, message: Message, body: bytes) -> None:
    node = servers.nodes["n1"]
    connection = wire.connect_tls((node.host, node.port), node.certificate, 5.0)
    greet(connection, TOKEN)
    connection.send(encode(message), [body] if body else [], seconds=5.0)
    assert isinstance(decode_reply(connection.receive(seconds=5.0)[0]), Refused)
    connection.close()
    assert servers.servers["n1"].memory.by_key == (0, 0)


def test_too_much_at_a_time_is_refused_before_memory_is_taken_for_it(servers: Servers) -> None:
    node = servers.nodes["n1"]
    connection = wire.connect_tls((node.host, node.port), node.certificate, 5.0)
    greet(connection, TOKEN)
    message = encode(Put("g", KEYS[:16], lengths(MOST_PUT + 1)))
    connection._send([memoryview(wire._HEAD.pack(b"hrw1", len(message), MOST_PUT + 1) + message)], 5.0)
    assert isinstance(decode_reply(connection.receive(seconds=5.0)[0]), Refused)
    connection.close()


def test_what_was_put_is_given_to_whoever_knows_the_token(servers: Servers) -> None:
    node = servers.nodes["n1"]
    connection = wire.connect_tls((node.host, node.port), node.certificate, 5.0)
    greet(connection, TOKEN)
    connection.send(encode(Put("g", KEYS, lengths(3, 0))), [b"one"], seconds=5.0)
    reply = decode_reply(connection.receive(seconds=5.0)[0])
    assert reply == Took(1, True), "nothing is no sample"
    found, body = ask(connection, Find("g", KEYS), 5.0, body_limit=100)
    assert isinstance(found, Given) and found.lengths == lengths(3, -1) and bytes(body) == b"one"
    found, body = ask(connection, Find("other", KEYS), 5.0, body_limit=100)
    assert isinstance(found, Given) and found.lengths == lengths(-1, -1) and not body
    connection.close()
    stranger = wire.connect_tls((node.host, node.port), node.certificate, 5.0)
    with pytest.raises(HostRefused):
        greet(stranger, "a guess")
