"""What holds for every tier by key: a folder on disk, a server, a cluster of servers, the nodes of a Ray cluster."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis

from headrace.cache.disk import DiskTier, OpenDisk
from headrace.cache.keyed import KeyTier
from headrace.cache.redis_tier import RedisTier, hide_password
from headrace.cluster.keyed_tier import NodesTier
from headrace.engine.disk_stage import DiskStage, DiskUse
from headrace.recipes.chain import State
from headrace.recipes.decoded import DecodedForm
from headrace.recipes.op import Size
from headrace.sources.simulated import SyntheticSource
from tests.cache.valkey import Valkey, free_port
from tests.cluster.nodes import Servers, forget_members

BUDGET = 16 << 20
Make = Callable[[int], KeyTier]


def key(number: int) -> bytes:
    return hashlib.blake2b(str(number).encode(), digest_size=16).digest()


def clustered(folder: Path) -> Valkey:
    """A cluster of one server that has all slots."""
    made = Valkey(folder, "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    client = redis.Redis(port=made.port)
    client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    deadline = time.monotonic() + 20
    while (
        b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO") and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    client.close()
    return made


def serve(kind: str, folder: Path) -> tuple[Valkey, str]:
    """A server or a cluster, and its URL."""
    if kind == "server":
        server = Valkey(folder)
        return server, server.url
    server = clustered(folder)
    return server, server.url.replace("redis://", "redis+cluster://")


@pytest.fixture(params=["disk", "server", "cluster", "nodes"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    if request.param == "disk":
        yield lambda budget: DiskTier(str(tmp_path / "disk"), budget, bytes(16))
        return
    if request.param == "nodes":
        nodes = Servers(tmp_path, count=3, memory=BUDGET // 3)
        yield lambda budget: NodesTier(nodes.nodes["n0"].socket, "", "decoded so", budget)
        forget_members()
        nodes.close()
        return
    server, url = serve(request.param, tmp_path)
    yield lambda budget: RedisTier(url, budget)
    server.close()


def test_what_was_kept_is_found_whole_and_nothing_else(make: Make) -> None:
    tier = pickle.loads(pickle.dumps(make(BUDGET))).open()
    samples = [(key(number), [bytes([number]) * 100, os.urandom(number * 50)]) for number in range(200)]
    assert tier.get_many([one for one, _ in samples]) == [None] * 200
    assert tier.put_many(samples) == 200
    assert tier.put_many(samples[:50]) == 0, "nothing is kept twice"
    found = tier.get_many([*(one for one, _ in samples), key(1000)])
    assert [bytes(one or b"") for one in found[:-1]] == [b"".join(pieces) for _, pieces in samples]
    assert found[-1] is None
    assert tier.has_many([key(3), key(1000), key(199)]) == [True, False, True]
    assert tier.has_many([]) == [] and tier.get_many([]) == [] and tier.put_many([]) == 0
    tier.close()
    again = make(BUDGET).open()
    assert bytes(again.get_many([key(7)])[0] or b"") == b"".join(samples[7][1]), "it outlasts who kept it"
    again.close()


def test_no_more_is_kept_than_the_budget(make: Make) -> None:
    tier = make(BUDGET).open()
    kept = sum(tier.put_many([(key(10_000 + number), [os.urandom(1 << 20)])]) for number in range(40))
    assert 8 <= kept <= 16
    assert not tier.has_room
    found = tier.get_many([key(10_000 + number) for number in range(40)])
    assert sum(one is not None for one in found) == kept
    tier.close()


def test_a_child_has_connections_and_files_of_its_own(make: Make) -> None:
    tier = make(BUDGET).open()
    tier.put_many([(key(1), [b"one"])])
    child = os.fork()
    if not child:
        try:
            mine = make(BUDGET).open()
            right = (
                bytes(mine.get_many([key(1)])[0] or b"") == b"one"
                and mine.put_many([(key(2), [b"two"])]) == 1
            )
            os._exit(0 if right else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bytes(tier.get_many([key(2)])[0] or b"") == b"two"
    tier.close()


def test_what_is_no_decoded_sample_of_the_recipe_is_let_go_and_another_takes_its_place(make: Make) -> None:
    """Each of these is a valid value, and another way of decoding, or another version, may have put it there."""
    source = SyntheticSource(6, 100, 100, None, 0.0, None, None)
    use = DiskUse(make(BUDGET), encoded=False, decoded=1.0, decoded_key="decoded so", whole=6)
    disk = DiskStage(use, source, DecodedForm(State("image", Size(None, None, 3))))
    names = disk.names(np.arange(6))
    image = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    wrong = [np.zeros(5), image.astype(np.float32), image[..., :2], image[:0], {"image": image}]
    disk.keep_decoded(dict(zip(names, [*wrong, image], strict=True)))

    def opened() -> dict[bytes, Any]:
        found = zip(names, disk.find(names), strict=True)
        return disk.open_decoded({name: one[1] for name, one in found if one is not None})

    assert list(opened()) == names[5:]
    assert [one is None for one in disk.find(names)] == [True] * 5 + [False], "they are gone"
    disk.keep_decoded(dict.fromkeys(names, image))
    assert all(np.array_equal(one, image) for one in opened().values()) and len(opened()) == 6
    disk.close()


def test_what_is_dropped_leaves_its_room_to_others(make: Make) -> None:
    """But for the disk, which is only written on: there it goes with its segment."""
    tier = make(BUDGET).open()
    for turn in range(4):
        samples = [(key(1000 * turn + number), [os.urandom(1 << 19)]) for number in range(12)]
        keys = [one for one, _ in samples]
        assert tier.put_many(samples) == 12
        tier.drop_many([*keys[:10], key(77_777)])
        tier.drop_many(keys[:10])
        assert tier.has_many(keys) == [False] * 10 + [True] * 2
        assert sum(one is not None for one in tier.get_many(keys)) == 2
        if isinstance(tier, OpenDisk):
            break
    tier.drop_many([])
    tier.close()


# -- servers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    made = Valkey(tmp_path)
    yield made
    made.close()


def counted_and_there(server: Valkey) -> tuple[int, int]:
    """Bytes that are counted, and those of all samples."""
    with redis.Redis(port=server.port) as client:
        names = set(client.keys("headrace:1:*")) - {b"headrace:1:bytes"}
        return int(client.get("headrace:1:bytes") or 0), sum(client.strlen(name) for name in names)


@pytest.mark.parametrize("kind", ["server", "cluster"])
def test_bytes_are_counted_exactly_while_some_put_what_others_drop(kind: str, tmp_path: Path) -> None:
    server, url = serve(kind, tmp_path)
    keys = [key(number) for number in range(3)]

    def put_and_drop(seed: int) -> None:
        tier, dice = RedisTier(url, BUDGET).open(), random.Random(seed)
        for _ in range(150):
            tier.put_many([(one, [bytes(dice.randrange(5000))]) for one in keys])
            tier.drop_many(dice.sample(keys, 2))
        tier.close()

    threads = [threading.Thread(target=put_and_drop, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counted, there = counted_and_there(server)
    assert counted == there
    tier = RedisTier(url, BUDGET).open()
    tier.put_many([(one, [b"once more"]) for one in keys])
    tier.drop_many(keys)
    assert counted_and_there(server) == (0, 0)
    tier.close()
    server.close()


def test_what_may_be_there_is_counted(server: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody hears nothing of what it sent, and other threads hear that the server is well."""
    tier = RedisTier(server.url, BUDGET).open()
    ask, lost = tier._ask, iter([False, True, False])

    def lossy(fill: Any) -> list[Any] | None:
        found = ask(fill)
        return None if next(lost) else found

    monkeypatch.setattr(tier, "_ask", lossy)
    assert tier.put_many([(key(1), [bytes(100)])]) == 0
    assert counted_and_there(server) == (104, 104)
    tier.close()


def test_what_was_changed_there_is_not_served(server: Valkey) -> None:
    tier = RedisTier(server.url, BUDGET).open()
    tier.put_many([(key(number), [b"right"]) for number in range(4)])
    client = redis.Redis(port=server.port)
    name = b"headrace:1:" + key(0)
    client.set(name, (client.get(name) or b"")[:-1] + b"?")
    client.set(b"headrace:1:" + key(1), b"")
    client.delete(b"headrace:1:" + key(2))
    client.lpush(b"headrace:1:" + key(9), "a list")
    found = tier.get_many([*(key(number) for number in range(4)), key(9)])
    assert [None if one is None else bytes(one) for one in found] == [None, None, None, b"right", None]
    tier.drop_many([key(0), key(9)])
    assert tier.has_many([key(0), key(9), key(3)]) == [False, False, True]
    tier.close()


@pytest.mark.parametrize("trouble", ["killed", "hangs"])
@pytest.mark.parametrize("kind", ["server", "cluster"])
def test_a_server_that_is_gone_is_left_alone_and_used_again(
    kind: str, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cache.redis_tier._TIMEOUT", 0.3)
    server, url = serve(kind, tmp_path)
    tier = RedisTier(url, BUDGET).open()
    tier.put_many([(key(1), [b"one"])])
    server.kill() if trouble == "killed" else server.stop()
    with pytest.warns(UserWarning, match="does not answer"):
        assert tier.get_many([key(1)]) == [None]
    begun = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(500):
            assert tier.get_many([key(1)]) == [None]
            assert tier.put_many([(key(2), [b"two"])]) == 0
            assert tier.has_many([key(1)]) == [True]
    assert time.monotonic() - begun < 5.0, "nobody waits for it again and again"
    server.start() if trouble == "killed" else server.go_on()
    deadline = time.monotonic() + 20
    while not tier.put_many([(key(3), [b"three"])]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert bytes(tier.get_many([key(3)])[0] or b"") == b"three"
    tier.close()
    server.close()


def test_a_cluster_of_servers_that_does_not_answer_is_looked_for_later() -> None:
    with pytest.raises(TimeoutError, match="cannot be connected"):
        RedisTier(f"redis+cluster://127.0.0.1:{free_port()}", BUDGET).open()


def test_a_server_without_memory_keeps_no_more(tmp_path: Path) -> None:
    server = Valkey(tmp_path, "--maxmemory", "6mb", "--maxmemory-policy", "noeviction")
    try:
        tier = RedisTier(server.url, BUDGET).open()
        tier.put_many([(key(number), [os.urandom(1 << 20)]) for number in range(12)])
        assert not tier.has_room
        there = sum(tier.has_many([key(number) for number in range(12)]))
        counted, nbytes = counted_and_there(server)
        assert there < 12 and counted == nbytes > there << 20
        tier.drop_many([key(number) for number in range(12)])
        assert counted_and_there(server) == (0, 0)
        tier.close()
    finally:
        server.close()


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    server = Valkey(tmp_path, "--requirepass", "secret")
    try:
        url = server.url.replace("//", "//user:wrong@")
        assert hide_password(url) == f"redis://***@127.0.0.1:{server.port}"
        tier = RedisTier(url, BUDGET).open()
        with pytest.warns(UserWarning, match="does not answer") as caught:
            assert tier.get_many([key(1)]) == [None]
        assert "wrong" not in str(caught[0].message) and "***" in str(caught[0].message)
        good = RedisTier(server.url.replace("//", "//default:secret@"), BUDGET).open()
        assert good.put_many([(key(1), [b"one"])]) == 1
        good.close()
    finally:
        server.close()
