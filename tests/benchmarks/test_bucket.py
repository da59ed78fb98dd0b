"""The benchmark of buckets: what it makes of numbers and names, its network; what it says of what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.bucket import environment, formats, keeper, measure, more, network, targets, upload
from benchmarks.bucket.bench import contender_table
from benchmarks.bucket.contenders import BY_NAME, CACHES, ENTRIES, number_of
from benchmarks.bucket.server import Counters, loaders_environment

LIMIT = "200mbit"
METRICS = """
# TYPE SeaweedFS_s3_request_total counter
SeaweedFS_s3_request_total{bucket="",code="403",type="LIST"} 1
SeaweedFS_s3_request_total{bucket="photos",code="200",type="GET"} 6020
SeaweedFS_s3_request_total{bucket="photos",code="404",type="GET"} 4
SeaweedFS_s3_in_flight_requests{type="GET"} 7
SeaweedFS_s3_request_total{bucket="photos",code="200",type="PUT"} 1e+03
"""


# -- counting --------------------------------------------------------------------------------------------------


def test_requests_are_counted_by_kind_whatever_was_answered() -> None:
    assert keeper.count_requests(METRICS) == {"LIST": 1, "GET": 6024, "PUT": 1000}


def test_counters_between_two_moments() -> None:
    before = Counters(5, {"GET": 4, "LIST": 1}, 100, 1000, 1.0)
    after = Counters(8, {"GET": 7, "LIST": 1}, 150, 4000, 1.5)
    assert after.since(before) == Counters(3, {"GET": 3}, 50, 3000, 0.5)
    assert after.since(before).bytes == 3050


def test_an_epoch_is_exact_when_each_photo_came_once() -> None:
    assert measure.exactness([np.array([2, 0]), [1, 3]], 4) == {"missing": 0, "repeated": 0}
    assert measure.exactness([[0, 1], [1, 3]], 5) == {"missing": 2, "repeated": 1}
    assert measure.exactness([[7]], 2) == {"missing": 2, "repeated": 0}
    assert measure.exactness([], 3) == {"missing": 3, "repeated": 0}


def epoch(**more: Any) -> dict[str, Any]:
    made = {"images": 100, "seconds": 2.0, "images_s": 50.0, "requests": 100, "bytes": 5000}
    made |= {"cpu_s_per_1000": 3.0, "server_cpu_s_per_1000": 1.0, "missing": 0, "repeated": 0}
    return made | more


def test_a_run_is_its_first_epoch_and_the_mean_of_the_later_ones() -> None:
    later = [epoch(seconds=1.0, requests=0), epoch(seconds=3.0, requests=10, missing=2)]
    found = measure.summarise([epoch(), epoch(requests=50), *later, epoch(requests=50)])
    assert found["first_images_s"] == 50 and found["first_requests"] == 100
    assert found["later_images_s"] == 50 and found["later_requests"] == 5
    assert found["missing"] == 2


# -- what lies in the bucket -----------------------------------------------------------------------------------


def test_a_photo_is_known_by_its_name_wherever_it_lies() -> None:
    assert {number_of(name) for name in ("train/class_3/0123.jpg", "000123", "000123.jpg")} == {123}


def test_shards_are_consecutive_and_full() -> None:
    sizes = [40, 40, 40, 10, 100, 5]
    parts = formats.divide(sizes, 80)
    assert [index for part in parts for index in range(len(sizes))[part]] == list(range(len(sizes)))
    assert [sum(sizes[part]) for part in parts] == [80, 150, 5]
    assert formats.divide([], 80) == []


def test_tar_shards_have_every_photo_once_and_say_nothing_of_who_made_them(tmp_path: Path) -> None:
    photos = tmp_path / "train" / "class_0"
    photos.mkdir(parents=True)
    for number in range(7):
        (photos / f"{number:04d}.jpg").write_bytes(bytes([number]) * 50)
    into = tmp_path / "shards"
    into.mkdir()
    formats.write_tar(sorted(photos.iterdir()), into, 120)
    found: dict[int, bytes] = {}
    for shard in sorted(into.iterdir()):
        with tarfile.open(shard) as opened:
            for member in opened:
                file = opened.extractfile(member)
                assert file is not None and member.uname == "" and member.mtime == 0
                found[number_of(member.name)] = file.read()
    assert found == {number: bytes([number]) * 50 for number in range(7)}
    assert len(list(into.iterdir())) == 3


def test_a_folder_becomes_keys(tmp_path: Path) -> None:
    (tmp_path / "class_0").mkdir()
    for name in ("class_0/0.jpg", "class_0/1.partial", "index.json"):
        (tmp_path / name).write_text("x")
    assert [key for key, _ in upload.objects("train", tmp_path)] == [
        "train/class_0/0.jpg",
        "train/index.json",
    ]


# -- the network -----------------------------------------------------------------------------------------------


def test_only_our_namespaces_of_processes_that_are_gone_are_stale() -> None:
    names = ["hrbucket-12-s", "hrbucket-12-c", "hrbucket-34-s", "hrbucket-x-s", "other-12-s", "hr12x0a"]
    assert network.stale(names, {34}) == ["hrbucket-12-s", "hrbucket-12-c"]


def test_servers_of_two_benchmarks_share_no_port_and_no_socket() -> None:
    one, other = (set(map(str, keeper.sockets(owner))) for owner in (1000, 1001))
    assert len(one) == len(other) == 4
    assert not one & other
    assert max(keeper.ports(999).values()) + 10001 < 32768  # below those that the system hands out


def test_the_server_talks_to_nobody_and_listens_where_loaders_are() -> None:
    command = keeper.command("weed", Path("/data"), 77)
    assert "-master.telemetry=false" in command
    assert f"-s3.ip.bind={network.SERVER}" in command and "-ip.bind=127.0.0.1" in command
    assert not [word for word in command if keeper.SECRET in word]


@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "nsenter"))), reason="needs root and iproute2"
)
def test_a_cable_joins_two_namespaces_that_lead_nowhere_else() -> None:
    # Named after a process that is gone, as none that runs could have it.
    gone = subprocess.Popen(["true"])
    gone.wait()
    cable = network.Cable.of(gone.pid)
    try:
        try:
            cable.lay()
            cable.limit("200mbit")
        except network.NoNetwork as error:
            pytest.skip(str(error))
        routes = ["ip", "-n", cable.client, "route"]
        listed = subprocess.run(routes, capture_output=True, text=True, check=True).stdout.splitlines()
        assert len(listed) == 1 and "10.214.0.0/24" in listed[0]
        shown = subprocess.run(["tc", "-n", cable.server, "qdisc"], capture_output=True, text=True).stdout
        assert "tbf" in shown and "200Mbit" in shown
        # over the cable and back, and the bytes of it are seen from inside
        code = f"from benchmarks.bucket import network as n; n.enter({cable.server!r}); print(*n.moved())"
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        talk = f"import socket as s; s.socket(2, 2).sendto(bytes(1000), ({network.SERVER!r}, 9))"
        subprocess.run([*network.inside(cable.client), sys.executable, "-c", talk], check=True)
        moved = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
        )
        assert int(moved.stdout.split()[0]) >= 1000
        cable.remove()
        assert cable.client not in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    finally:
        cable.remove()


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(network.NoNetwork, match="need root"):
        network.check()


def test_loaders_are_told_who_they_are_where_they_look() -> None:
    found = loaders_environment("http://host:1")
    assert found["AWS_ENDPOINT_URL"] == found["S3_ENDPOINT_URL"] == "http://host:1"
    assert found["AWS_ACCESS_KEY_ID"] and found["AWS_SECRET_ACCESS_KEY"]


# -- contenders ------------------------------------------------------------------------------------------------


def test_everybody_has_a_rival_with_as_much_cache() -> None:
    ours = {entry.cache for entry in ENTRIES if entry.environment == "headrace"}
    assert ours == {entry.cache for entry in ENTRIES if entry.environment == "peers"} == set(CACHES)
    assert len(BY_NAME) == len(ENTRIES)
    for entry in ENTRIES:
        module, function = entry.target.split(":")
        text = (Path(environment.HERE) / "contenders" / f"{module}.py").read_text()
        assert f"def {function}(" in text


def test_stand_ins_are_only_for_who_needs_them() -> None:
    assert {entry.name for entry in ENTRIES if entry.stubs} == {"mosaic-whole", "mosaic-half"}
    assert {path.name for path in environment.STUBS.iterdir() if path.is_dir()} == {
        "torchvision",
        "transformers",
    }


# -- targets ---------------------------------------------------------------------------------------------------


def run(first: float, later: float, **more: Any) -> dict[str, Any]:
    made = {"first_images_s": first, "later_images_s": later, "later_requests": 0.0, "later_bytes": 0.0}
    return {**made, "missing": 0, "repeated": 0, "others_cpu": 0.0} | more


def find(found: list[Any], text: str) -> Any:
    (one,) = [item for item in found if text in item.name]
    return one


def test_ratios_are_of_the_same_round_and_of_quiet_runs() -> None:
    runs = {
        f"{LIMIT} headrace-none": [
            run(200, 300),
            run(400, 400),
            run(1, 1),
        ],
        f"{LIMIT} headrace-none-steps": [run(1, 1, later_bytes=1000.0)] * 3,
        f"{LIMIT} webdataset-none": [run(100, 100), run(100, 200), run(1, 1, others_cpu=1.0)],
        f"{LIMIT} headrace-half": [run(1, 1)] * 3,
        f"{LIMIT} headrace-half-steps": [run(1, 1, later_bytes=510.0)] * 3,
        f"{LIMIT} headrace-whole": [run(1, 1, later_requests=2.0)] * 3,
    }
    rounds = targets.Rounds(runs, 3, {f"{LIMIT} litdata-half": "ValueError: why"})
    found = targets.compute(rounds, [LIMIT])
    one = find(found, "first epoch, images/s over WebDataset, no cache")
    assert (one.value, one.spread, one.met) == (3.0, (2.0, 4.0), True)
    assert find(found, "later epoch, images/s over WebDataset, no cache").value == 2.5
    assert find(found, "bytes of a later epoch").value == 0.51 and find(found, "bytes of a later epoch").met
    assert (
        find(found, "requests of a later epoch").value == 2
        and not find(found, "requests of a later epoch").met
    )
    lost = find(found, "later epoch, images/s over LitData, cache for half")
    assert lost.value is None and not lost.met and "ValueError: why" in lost.note
    assert "was left out" in find(found, "first epoch, images/s over torch DataLoader, s3fs, no cache").note
    assert find(found, "left out, or gave twice").met


def test_behind_other_limits_the_best_of_each_round_counts() -> None:
    runs = {
        "1gbit headrace-whole": [run(100, 100), run(100, 100)],
        "1gbit litdata-whole": [run(50, 200), run(10, 10)],
        "1gbit mosaic-whole": [run(20, 20), run(200, 50)],
    }
    found = targets.compute(targets.Rounds(runs, 2, {}), [LIMIT, "1gbit"])
    assert find(found, "1gbit: first epoch, images/s over the best, cache for all").spread == (0.5, 2.0)
    assert not find(found, "1gbit: later epoch, images/s over the best, cache for half").met


def test_nothing_measured_is_told_as_that() -> None:
    found = targets.compute(targets.Rounds({}, 1, {}), [LIMIT])
    assert all(item.value is None and not item.met and item.note.startswith("not measured") for item in found)


def test_parts_that_are_not_there_are_told_as_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(more, "find_spec", lambda _name: None)
    found = more.run(None, tmp_path, quick=True)  # type: ignore[arg-type]
    assert len(found) == 4 and all(item.note.startswith("not measured") for item in found)


def test_a_part_that_fails_takes_nobody_else_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def targets(*_: object) -> None:
            raise ValueError("no such bucket")

    monkeypatch.setattr(more, "find_spec", lambda name: name.endswith("listing") or None)
    monkeypatch.setattr(more, "import_module", lambda _name: Broken)
    found = more.run(None, tmp_path, quick=True)  # type: ignore[arg-type]
    assert "no such bucket" in found[0].note and len(found) == 4


def test_the_table_says_who_is_not_exact() -> None:
    numbers = {
        f"{e}_{f}": 1.0
        for e in ("first", "later")
        for f in ("images_s", "requests", "bytes", "cpu_s_per_1000")
    }
    summary = {name: {"median": value, "max": value} for name, value in numbers.items()}
    good = {"missing": {"max": 0}, "repeated": {"max": 0}}
    bad = {"missing": {"max": 3}, "repeated": {"max": 1}}
    item = {"limit": LIMIT, "label": "L", "reads": "objects", "cache": "none"}
    shown = contender_table({"contenders": [item | {"summary": summary | these} for these in (good, bad)]})
    assert "yes" in shown and "3 left out, 1 twice" in shown
