"""Buckets of a real server: the same samples as from local folders; what fails, and whose fault it is."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.core.errors import MissingExtra, NotNow, OptionError, StorageUnavailable
from headrace.sources.buckets import again, cached, library, listing, opened
from headrace.sources.buckets.errors import Changed
from headrace.sources.location import Location
from headrace.sources.storage import Entry, storage_of
from tests.sources.fault_proxy import FaultProxy
from tests.sources.s3_server import S3Server

_numbers = itertools.count()
NAMES = [
    "cat/1.jpg",
    "cat/10.jpg",
    "cat/2.JPG",
    "cat/deep/er/3.png",
    "cat/deep/9.jpg",
    "cat/deep-er/4.jpg",
    "cat-fish/5.jpg",
    "dog/notes.txt",
    "dog/6 ü+%.jpg",
    ".hidden/7.jpg",
    "dog/.8.jpg",
    "loose.jpg",
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """A part of one for each test, with objects in it."""
    name = f"tests/{os.getpid()}-{next(_numbers)}"
    s3.put(name, {f"data/{one}": one.encode() * 3 for one in NAMES})
    return name


def local(root: Path) -> Path:
    for one in NAMES:
        path = root / "local" / one
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(one.encode() * 3)
    return root / "local"


def relative(source: Any, root: str) -> list[str]:
    return [source.name(at).removeprefix(root) for at in range(len(source))]


# -- the same as local ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1000, 3], ids=["in one page", "by folder"])
@pytest.mark.parametrize(
    "options",
    [{}, {"labels": False}, {"extensions": None}, {"extensions": [".png"], "allow_empty": True}],
    ids=lambda options: " ".join(options) or "by default",
)
def test_a_bucket_is_as_a_folder(
    options: dict[str, Any],
    page: int,
    s3: S3Server,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "_PAGE", page)
    root = local(tmp_path)
    there = hr.folder(f"s3://{bucket}/data", storage_options=s3.options, **options)
    here = hr.folder(root, **options)
    assert relative(there, f"s3://{bucket}/data/") == relative(here, f"{root}/")
    if options.get("labels", True):
        assert there.targets is not None and there.targets.dtype == np.int64
        np.testing.assert_array_equal(there.targets, here.targets)
    else:
        assert there.targets is None
    assert (there.classes, there.class_to_idx) == (here.classes, here.class_to_idx)
    assert there.read_many(range(len(there))) == here.read_many(range(len(here)))
    assert there.root == f"s3://{bucket}/data"


def test_what_is_wrong_with_a_folder_is_said_as_of_local_ones(s3: S3Server, bucket: str) -> None:
    def folder(where: str, **options: Any) -> Any:
        return hr.folder(f"s3://{bucket}{where}", storage_options=s3.options, **options)

    with pytest.raises(OptionError, match="does not exist, or is empty"):
        folder("/nothing")
    with pytest.raises(OptionError, match=r"no class folders \(and 2 files directly in it\)"):
        folder("/data/dog")
    with pytest.raises(
        OptionError, match=r"class folder 's3://.*/data/cat-fish' has no files ending in \.png"
    ):
        folder("/data", extensions=[".png"])
    with pytest.raises(OptionError, match=r"labels=False\) has no files ending in \.gif"):
        folder("/data", extensions=[".gif"], labels=False)
    with pytest.raises(FileNotFoundError, match="no such bucket"):
        hr.folder("s3://none-of-that-name/x", storage_options=s3.options)


def test_files_of_labels(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    table = "file,label\ncat/1.jpg,red\ndog/6 ü+%.jpg,blue\n"
    pairs = '{"cat/1.jpg": 3, "cat/2.JPG": 4}'
    s3.put(bucket, {"data/labels.csv": table.encode(), "data/labels.json": pairs.encode()})
    url, options = f"s3://{bucket}/data", s3.options
    source = hr.folder(url, manifest="labels.csv", storage_options=options)
    assert source.classes == ["blue", "red"] and list(source.targets) == [1, 0]
    assert source.read_many([1, 0]) == ["dog/6 ü+%.jpg".encode() * 3, b"cat/1.jpg" * 3]
    assert list(hr.folder(url, manifest="labels.json", storage_options=options).targets) == [3, 4]
    (tmp_path / "own.csv").write_text("cat/1.jpg,7\n")
    assert list(hr.folder(url, manifest=tmp_path / "own.csv", storage_options=options).targets) == [7]
    with pytest.raises(OptionError, match="does not exist"):
        hr.folder(url, manifest="other.csv", storage_options=options)


def test_files_that_are_named(s3: S3Server, bucket: str) -> None:
    urls = [f"s3://{bucket}/data/{name}" for name in ("dog/notes.txt", "cat/1.jpg", "none")]
    source = hr.files(urls, [5, 6, 7], storage_options=s3.options)
    notes, cat, none = source.read_many(range(3))
    assert (notes, cat) == (b"dog/notes.txt" * 3, b"cat/1.jpg" * 3)
    assert isinstance(none, FileNotFoundError) and urls[2] in str(none)
    assert list(source.targets) == [5, 6, 7]
    assert source.identity(1).startswith(urls[1] + "\0") and source.identity(2) == urls[2]
    other = hr.files(urls[::-1], storage_options=s3.options)
    assert other.identity(1) == source.identity(1) and other.fingerprint() != source.fingerprint()
    small = hr.files(urls[:1], max_bytes=10, storage_options=s3.options)
    assert "max_bytes" in str(small.read_many([0])[0])


def test_a_recipe_of_a_bucket_is_plain_data_without_secrets(
    s3: S3Server, bucket: str, monkeypatch: Any
) -> None:
    for source in (
        hr.folder(f"s3://{bucket}/data", storage_options=s3.options),
        hr.files([f"s3://{bucket}/data/cat/1.jpg"], storage_options=s3.options),
    ):
        data = hr.Recipe(source, hr.image.decode()).to_dict()
        assert s3.options["secret_access_key"] not in str(data) and s3.options["access_key_id"] not in str(
            data
        )
        for name, value in s3.environment().items():
            monkeypatch.setenv(name, value)
        again = hr.Recipe.from_dict(data).source
        assert relative(again, "") == relative(source, "") and again.read_many([0]) == source.read_many([0])
        assert again.fingerprint() == source.fingerprint()


# -- storage -------------------------------------------------------------------------------------------------


def test_what_lies_in_a_bucket(s3: S3Server, bucket: str) -> None:
    storage = storage_of(f"s3://{bucket}", storage_options=s3.options)
    entries = [entry for some in storage.below(f"s3://{bucket}/data/cat".encode()) for entry in some]
    names = [entry.what.decode().removeprefix(f"s3://{bucket}/data/") for entry in entries]
    assert names == sorted(name for name in NAMES if name.startswith("cat/"))
    assert [entry.size for entry in entries] == [3 * len(name) for name in names]
    described = storage.describe([entry.what for entry in entries])
    assert described == entries
    none, one = storage.describe([b"s3://%b/none" % bucket.encode(), entries[0].what])
    assert isinstance(none, FileNotFoundError) and isinstance(one, Entry)


def test_parts_of_objects(s3: S3Server, bucket: str, proxy: FaultProxy) -> None:
    content = bytes(range(256)) * 1000
    s3.put(bucket, {"shard": content})
    storage = storage_of(f"s3://{bucket}", storage_options={**s3.options, "endpoint": proxy.endpoint})
    what = f"s3://{bucket}/shard".encode()
    parts = [Location(what, b"", at, 100) for at in (5000, 0, 100, 5050)]
    assert storage.read(parts) == [content[one.start : one.start + 100] for one in parts]
    assert proxy.requests == 1, "all of them in one request"
    rest, empty, beyond, far = storage.read(
        [
            Location(what, b"", 255_990),
            Location(what, b"", 7, 0),
            Location(what, b"", 255_990, 11),
            Location(what, b"", 10**7, 5),
        ]
    )
    assert rest == content[-10:] and empty == b""
    for error in (beyond, far):
        assert isinstance(error, OSError) and "ends before" in str(error)


# -- objects that change, listings that are kept -----------------------------------------------------------------


def test_an_object_that_was_changed_is_never_served(s3: S3Server, bucket: str) -> None:
    url = f"s3://{bucket}/data"
    source = hr.folder(url, storage_options=s3.options)
    at = relative(source, url + "/").index("cat/1.jpg")
    s3.put(bucket, {"data/cat/1.jpg": b"another"})
    (error,) = source.read_many([at])
    assert isinstance(error, Changed) and "refresh=True" in str(error)
    kept = hr.folder(url, storage_options=s3.options)
    assert kept.fingerprint() == source.fingerprint(), "what was listed a moment ago is not listed again"
    anew = hr.folder(url, storage_options=s3.options, refresh=True)
    assert anew.read_many([at]) == [b"another"]
    assert anew.fingerprint() != source.fingerprint() and anew.identity(at) != source.identity(at)
    assert anew.listing() == source.listing()
    assert source.identity(at + 1) == anew.identity(at + 1)


def test_when_a_bucket_is_listed_again(
    s3: S3Server, bucket: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = f"s3://{bucket}/data", {**s3.options, "endpoint": proxy.endpoint}
    proxy.lines = []

    def folder(**more: Any) -> tuple[Any, int]:
        before = len(proxy.lines or ())
        source = hr.folder(url, storage_options=options, **more)
        return source, len(proxy.lines or ()) - before

    first, asked = folder()
    assert asked > 0
    again, asked = folder()
    assert asked == 0 and again.fingerprint() == first.fingerprint()
    monkeypatch.setattr(cached, "FRESH", -1.0)
    again, asked = folder()
    assert asked > 0 and again.fingerprint() == first.fingerprint(), "samples of it are right"
    listed = again._objects.manifest.header.listed
    assert listed == first._objects.manifest.header.listed
    s3.put(bucket, {"data/dog/99.jpg": b"new"})
    assert folder(refresh=False)[0].fingerprint() == first.fingerprint()
    more, _ = folder()
    assert len(more) == len(first) + 1, "one was added behind the last"
    s3.put(bucket, {"data/cat/1.jpg": b"changed"})
    changed, _ = folder()
    assert changed.fingerprint() != more.fingerprint() and len(changed) == len(more)
    s3.put(bucket, {"data/ant/1.jpg": b"new"})
    assert folder()[0].classes == ["ant", *first.classes]
    monkeypatch.setattr(cached, "GOOD", -1.0)
    monkeypatch.setattr(cached, "_holds", lambda *_: pytest.fail("it is too old to look"))
    assert folder()[1] > 0


def test_kept_listings_are_private_files_and_nothing_is_left_beside_them(
    s3: S3Server, bucket: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hr.folder(f"s3://{bucket}/data", storage_options=s3.options)
    monkeypatch.setattr(listing.Writer, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        hr.folder(f"s3://{bucket}/data", storage_options=s3.options, refresh=True)
    paths = list((own_cache / "headrace" / "listings").iterdir())
    assert sorted(path.suffix for path in paths) == [".lock", ".manifest"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in paths if path.suffix == ".manifest")


# -- processes -----------------------------------------------------------------------------------------------


def in_child(call: Callable[[], bool]) -> bool:
    pid = os.fork()
    if not pid:
        signal.alarm(60)
        try:
            os._exit(0 if call() else 1)
        finally:
            os._exit(2)
    return os.waitpid(pid, 0)[1] == 0


def copies() -> int:
    """Copies of the library that this process holds open. (Connections come and go.)"""
    links = Path("/proc/self/fd").iterdir()
    return sum("headrace-obstore" in os.path.realpath(link) for link in links)


def test_a_forked_child_reads_whatever_its_parent_did(s3: S3Server, bucket: str) -> None:
    source = hr.folder(f"s3://{bucket}/data", storage_options=s3.options)
    content = source.read_many(range(len(source)))
    before = copies()

    def read() -> bool:
        return source.read_many(range(len(source))) == content

    assert in_child(lambda: read() and in_child(lambda: read() and in_child(read)))
    assert in_child(lambda: in_child(read)), "one that never read itself"
    assert read()
    assert copies() <= before + 1, "one that children share"


def test_a_copy_of_the_library_is_not_taken_for_that_of_a_parent(s3: S3Server, bucket: str) -> None:
    source = hr.folder(f"s3://{bucket}/data", storage_options=s3.options)
    content = source.read_many(range(len(source)))

    def read() -> bool:
        return source.read_many(range(len(source))) == content

    def read_elsewhere() -> bool:
        number = number_of_copy()
        os.dup2(0, number)  # so that no connection has the number that the copy had,
        assert read()
        while os.dup(0) < number:
            pass  # (connections that ended meanwhile have left lower ones)
        os.close(number)
        return in_child(lambda: number_of_copy() == number and read())  # and the next copy has it

    def number_of_copy() -> int:
        return int(library.library().__spec__.origin.rpartition("/")[2])

    assert in_child(read_elsewhere)


def _in_another(source: Any, answers: Any) -> None:
    found = source.read_many(range(len(source)))
    answers.put([one if isinstance(one, bytes) else repr(one) for one in found])


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.slow
def test_credentials_reach_processes_that_are_started(s3: S3Server, bucket: str, method: str) -> None:
    source = hr.folder(f"s3://{bucket}/data", storage_options=s3.options)
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=_in_another, args=(source, answers))
    process.start()
    assert answers.get() == source.read_many(range(len(source)))
    process.join()


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library._state, "module", None)
    monkeypatch.setitem(sys.modules, "obstore._obstore", None)
    with pytest.raises(MissingExtra, match=r"pip install 'headrace\[bucket\]'"):
        hr.folder("s3://bucket/data")


# -- what fails ----------------------------------------------------------------------------------------------


@pytest.fixture
def behind(s3: S3Server, bucket: str, proxy: FaultProxy) -> Any:
    options = {**s3.options, "endpoint": proxy.endpoint}
    return hr.files([f"s3://{bucket}/data/{name}" for name in NAMES], storage_options=options)


@pytest.mark.parametrize(
    ("faults", "kind", "said"),
    [
        ({"busy": 1.0}, NotNow, "503 SlowDown"),
        ({"busy": 1.0, "status": 429}, NotNow, "429"),
        ({"busy": 1.0, "status": 403}, PermissionError, "AccessDenied"),
        ({"drop": 1.0}, NotNow, "the connection was lost"),
        ({"stall": 1.0}, NotNow, "no answer in time"),
    ],
)
def test_faults_of_storage(
    faults: dict[str, Any], kind: type[Exception], said: str, behind: Any, proxy: FaultProxy
) -> None:
    assert behind.read_many([0]) == [NAMES[0].encode() * 3]
    for name, value in faults.items():
        setattr(proxy.faults, name, value)
    for error in behind.read_many([0, 1]):
        assert isinstance(error, kind) and said in str(error)
    proxy.faults.busy = proxy.faults.drop = proxy.faults.stall = 0.0
    assert behind.read_many([1]) == [NAMES[1].encode() * 3]


def test_a_request_that_was_given_up_gets_more_time(behind: Any, proxy: FaultProxy) -> None:
    bucket = opened.opened("s3://tests", behind._storage.options)
    key = (behind.name(0).encode(), 0)
    assert bucket.wait(key) == 0
    proxy.faults.stall, proxy.faults.stall_seconds = 1.0, 1.5
    (error,) = behind.read_many([0])
    assert isinstance(error, NotNow) and bucket.wait(key) == 1 and bucket.wait("another") == 0
    assert behind.read_many([0]) == [NAMES[0].encode() * 3], "slow storage is read all the same"


def test_a_listing_goes_on_when_pages_are_refused(s3: S3Server, bucket: str, proxy: FaultProxy) -> None:
    proxy.faults.busy = 0.5
    options = {**s3.options, "endpoint": proxy.endpoint}
    source = hr.folder(f"s3://{bucket}/data", storage_options=options)
    assert len(source) == len(hr.folder(f"s3://{bucket}/data", storage_options=s3.options))
    assert proxy.counts["busy"] > 0


@pytest.mark.slow
def test_what_is_asked_for_before_anything_is_read_is_asked_for_again(
    s3: S3Server, bucket: str, proxy: FaultProxy
) -> None:
    s3.put(bucket, {"data/labels.csv": b"cat/1.jpg,3\n"})
    proxy.faults.busy = 0.7
    options = {**s3.options, "endpoint": proxy.endpoint}
    source = hr.folder(f"s3://{bucket}/data", manifest="labels.csv", storage_options=options)
    proxy.faults.busy = 0.7
    assert "\0" in source.identity(0), "its version was found out"
    assert proxy.counts["busy"] > 1


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch, s3: S3Server, bucket: str) -> None:
    monkeypatch.setattr(opened, "_RETRIES", {"max_retries": 1})
    monkeypatch.setattr(again, "_LONGEST", 0.2)
    options = {**s3.options, "endpoint": "http://127.0.0.1:9"}
    with pytest.raises(StorageUnavailable, match=r"no connection to 127\.0\.0\.1"):
        hr.folder(f"s3://{bucket}/data", storage_options=options)
    with pytest.raises(StorageUnavailable, match="no connection"):
        hr.files([f"s3://{bucket}/data/x"], storage_options=options).fingerprint()


def test_credentials_are_nowhere(
    s3: S3Server, bucket: str, proxy: FaultProxy, own_cache: Path, capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Neither the right ones, nor wrong ones, in anything that is printed, kept or passed on."""
    secrets = ("ACCESSKEYTHATISWRONG", "SECRETKEYTHATISWRONG", s3.options["secret_access_key"])
    monkeypatch.setattr(opened, "WAITS", (1, 1, 1, 1, 1, 1, 1))
    right = {**s3.options, "endpoint": proxy.endpoint}
    wrong = {**right, "access_key_id": secrets[0], "secret_access_key": secrets[1]}
    url = f"s3://{bucket}/data"
    said: list[Any] = []
    for options in (right, wrong):
        source = hr.files([f"{url}/{NAMES[0]}", f"{url}/none"], storage_options=options)
        said += [source, source.location_reader(), source.definition(), source.fingerprint()]
        for faults in ({}, {"busy": 1.0}, {"drop": 1.0}, {"stall": 1.0}):
            proxy.faults.busy, proxy.faults.drop, proxy.faults.stall = 0.0, 0.0, 0.0
            for name, value in faults.items():
                setattr(proxy.faults, name, value)
            said += source.read_many([0, 1])
        proxy.faults.stall = 0.0
        said.append(pickle.dumps(source))
    good = hr.folder(url, storage_options=right)
    said += [good, pickle.dumps(good), good.identity(0), good.fingerprint()]
    for call in (
        lambda: hr.folder(url, storage_options=wrong, refresh=True),
        lambda: hr.folder(url, storage_options={**wrong, "nothing_like_it": secrets[1]}, refresh=True),
        lambda: hr.folder(
            url, storage_options={**wrong, "sse_kms_key_id": secrets[1], "allow_http": "?"}, refresh=True
        ),
        lambda: hr.folder(f"https://me:{secrets[1]}@host/x"),
    ):
        with pytest.raises((OptionError, OSError)) as raised:
            call()
        said += [raised.value, *traceback.format_exception(raised.value)]
    printed = capfd.readouterr()
    everything = [
        repr(said), "\n".join(map(str, said)), printed.out, printed.err, caplog.text,
        *(f"{one!r} {one.__cause__!r} {one.__context__!r}" for one in said if isinstance(one, BaseException)),
        *(str(pickle.dumps(one)) for one in said if isinstance(one, BaseException)),
        *(path.read_bytes().decode("latin-1") for path in own_cache.rglob("*") if path.is_file()),
    ]  # fmt: skip
    assert sum(isinstance(one, BaseException) for one in said) > 12
    for secret in secrets:
        assert [text for text in everything if secret in text] == []
