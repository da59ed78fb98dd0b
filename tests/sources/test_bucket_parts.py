"""Parts of reading buckets that need none: names in few bytes, manifests, ranges, URLs, options, what errors mean."""

from __future__ import annotations

import json
import os
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.core.errors import NotNow, OptionError
from headrace.sources.buckets import errors, front_coding
from headrace.sources.buckets.gathering import Found, Gathering, Spill
from headrace.sources.buckets.manifest import Manifest, Writer
from headrace.sources.buckets.options import Options
from headrace.sources.buckets.profiles import from_profile
from headrace.sources.buckets.ranges import GAP, LONGEST, together
from headrace.sources.buckets.storage import version_of
from headrace.sources.buckets.urls import Url, parse, stripped
from headrace.sources.location import Location
from headrace.sources.storage import storage_of

names = st.binary(max_size=40) | st.text("ab/", max_size=300).map(str.encode)


@given(st.lists(names, max_size=40))
def test_names_come_back(some: list[bytes]) -> None:
    for given_ in (some, sorted(some)):
        assert front_coding.decode(front_coding.encode(given_), len(given_)) == given_


def write(folder: Path, rows: list[tuple[bytes, int]], classes: list[str] | None = None) -> Manifest:
    writer = Writer(folder, "s3://b/train", len(rows), wide=True, classes=classes, listed=12.0)
    for start in range(0, len(rows), 7):
        some = rows[start : start + 7]
        versions = b"".join(bytes([at % 256]) * 16 for at in range(start, start + len(some)))
        writer.append(
            [name for name, _ in some], [size for _, size in some], versions, 0 if classes else None
        )
    return writer.finish(folder / "manifest")


@given(st.lists(st.tuples(names, st.integers(0, 1 << 60)), min_size=1, max_size=60), st.data())
def test_a_manifest_keeps_all(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[bytes, int]], data: st.DataObject
) -> None:
    found = write(tmp_path_factory.mktemp("m"), rows, data.draw(st.sampled_from([None, ["only"]])))
    at = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    for indices in (at, np.array(at, np.int64), range(len(rows))):
        assert found.names(indices) == [rows[row][0] for row in indices]
        assert found.sizes(indices).tolist() == [rows[row][1] for row in indices]
        assert found.versions(indices) == [b"%02x" % (row % 256) * 16 for row in indices]
    again = pickle.loads(pickle.dumps(found))
    assert again.names(at) == found.names(at)
    with pytest.raises(IndexError):
        found.names([len(rows)])


def test_what_is_no_whole_manifest_is_refused(tmp_path: Path) -> None:
    whole = Path(write(tmp_path, [(b"a/%d" % at, at) for at in range(100)]).path).read_bytes()
    for name, content in {"cut": whole[:-1], "more": whole + b"x", "none": b"", "other": b"x" * 5000}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises((ValueError, OSError)):
            Manifest(tmp_path / name)
    assert len([path for path in tmp_path.iterdir() if path.name.endswith(".partial")]) == 0


@given(
    st.lists(st.lists(st.sampled_from([b"a", b"a-b", b"b", b"c.jpg"]), min_size=1, max_size=4), max_size=30)
)
def test_objects_are_in_the_order_of_folders(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[bytes]]
) -> None:
    """However they come: folders by path, objects by name in each."""
    all_names = list(dict.fromkeys(b"/".join(one) for one in parts))
    spill = Spill(tmp_path_factory.getbasetemp())
    gathering = Gathering(spill)
    for at, name in enumerate(all_names):
        gathering.add([Found(name, at, b"%032x" % at)])
        if at % 5 == 0:
            gathering.settle()
    found = [row for some in gathering.all() for row in zip(some[0], some[1], strict=True)]
    versions = b"".join(some[2] for some in gathering.all())
    spill.close()
    expected = sorted(all_names, key=lambda name: (name.rpartition(b"/")[0], name))
    assert [name for name, _ in found] == expected
    assert [size for _, size in found] == [all_names.index(name) for name in expected]
    assert [int.from_bytes(versions[16 * at : 16 * at + 16]) for at in range(len(found))] == [
        size for _, size in found
    ]


locations = st.builds(
    Location,
    st.sampled_from([b"s3://b/one", b"s3://b/two"]),
    st.just(b"v"),
    st.integers(0, 400_000),
    st.none() | st.integers(0, 9_000_000),
)


@given(st.lists(locations, max_size=12))
def test_every_location_lies_in_one_request(wanted: list[Location]) -> None:
    requests = together(wanted)
    assert sorted(row for request in requests for row in request.rows) == list(range(len(wanted)))
    for request in requests:
        for row in request.rows:
            one = wanted[row]
            assert request.what == one.what and request.start <= one.start
            if one.length is None:
                assert request.stop is None and request.start == one.start
            else:
                assert request.stop is not None and request.stop >= one.start + one.length
        if len(request.rows) > 1 and request.stop is not None:
            assert request.stop - request.start <= LONGEST


def test_parts_that_lie_near_each_other_are_read_together() -> None:
    near = [Location(b"s3://b/x", b"", at * 1000, 900) for at in (2, 0, 1)]
    (one,) = together(near)
    assert (one.start, one.stop) == (0, 2900)
    far = [Location(b"s3://b/x", b"", 0, 10), Location(b"s3://b/x", b"", 11 + GAP, 10)]
    assert len(together(far)) == 2
    assert len(together([Location(b"s3://b/x", b"a", 0, 10), Location(b"s3://b/x", b"b", 10, 10)])) == 2


@pytest.mark.parametrize(
    "tag", ["0x8DD", "d41d8cd98f00b204e9800998ecf8427e", "d41d8cd98f00b204e9800998ecf8427e-3"]
)
def test_an_object_has_one_version_however_its_tag_is_written(tag: str) -> None:
    """Azure's listings have tags without quotes, and its answers with them: all objects were taken for changed."""
    written = [tag, f'"{tag}"', f'W/"{tag}"']
    assert len({version_of({"e_tag": one}) for one in written}) == 1
    assert version_of({"e_tag": tag}) != version_of({"e_tag": tag + "0"})


def test_an_object_without_a_tag_has_the_version_of_its_size_and_second() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    meta = {"e_tag": None, "size": 7, "last_modified": at}
    later = meta | {"last_modified": at + timedelta(seconds=1)}
    assert version_of(meta) == version_of(meta | {"last_modified": at + timedelta(milliseconds=120)})
    assert len({version_of(meta), version_of(meta | {"size": 8}), version_of(later)}) == 3


# -- URLs and options ------------------------------------------------------------------------------------------


def test_urls() -> None:
    assert parse("s3://bucket/a b/ü%20.jpg") == Url("s3://bucket", "a b/ü%20.jpg")
    assert parse("S3://bucket/") == Url("s3://bucket", "")
    assert parse("https://host:8/a%20b/c.jpg") == Url("https://host:8", "a b/c.jpg")
    assert str(parse("https://host/a%20b")) == "https://host/a%20b"
    assert parse("abfss://c@account.dfs.core.windows.net/x").key == "x"
    assert [parse(f"{scheme}://b/k").kind for scheme in ("gs", "az", "http")] == ["gs", "az", "http"]
    for wrong in ("nothing://x", "s3://", "no url"):
        with pytest.raises(OptionError, match="no URL of a bucket"):
            parse(wrong)
    for secret in (
        "https://me:SECRET@host/x",
        "https://host/x?X-Amz-Signature=SECRET",
        "s3://me:SECRET@bucket/x",
    ):
        with pytest.raises(OptionError) as raised:
            parse(secret)
        assert "SECRET" not in str(raised.value) and "SECRET" not in stripped(secret)


def test_secret_options_are_kept_to_themselves() -> None:
    options = Options(
        {"secret_access_key": "SECRET", "Region": "eu", "sas_token": "SECRET", "allow_http": True}
    )
    assert options.public == {"region": "eu", "allow_http": True}
    assert "SECRET" not in repr(options) and "SECRET" not in str(options.digest)
    assert b"SECRET" not in pickle.dumps(options)
    assert options.config()["secret_access_key"] == "SECRET" and options.client() == {"allow_http": True}
    assert pickle.loads(pickle.dumps(options)).config() == {"region": "eu"}
    assert options != Options({"region": "eu", "allow_http": True})
    with pytest.raises(OptionError, match="user or a password"):
        Options({"endpoint": "http://me:SECRET@host"})


def test_options_are_for_urls(tmp_path: Path) -> None:
    for wrong in (
        lambda: hr.folder(tmp_path, storage_options={}),
        lambda: hr.folder(tmp_path, refresh=True),
        lambda: hr.files([tmp_path / "x"], storage_options={}),
        lambda: storage_of(tmp_path, storage_options={}),
        lambda: hr.folder("s3://bucket", refresh="now"),  # type: ignore[arg-type]
        lambda: hr.files(["s3://bucket/x", tmp_path / "x"]),
        lambda: hr.folder("what://bucket"),
    ):
        with pytest.raises(OptionError):
            wrong()


def test_a_path_may_be_written_as_a_url(tmp_path: Path) -> None:
    place = tmp_path / "a b" / "cat"
    place.mkdir(parents=True)
    (place / "x.jpg").write_bytes(b"xyz")
    root = f"file://{tmp_path}/a%20b"
    assert hr.folder(root).read_many([0]) == hr.files([f"{root}/cat/x.jpg"]).read_many([0]) == [b"xyz"]
    storage = storage_of(root)
    (some,) = storage.below(os.fsencode(root))
    (described,) = storage.describe([os.fsencode(f"{root}/cat/x.jpg")])
    assert some == [described]


def test_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert from_profile() == ({}, None)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id=A\naws_secret_access_key=B\n[lab]\naws_access_key_id=C\n"
        "aws_secret_access_key=D\naws_session_token=E\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        "[profile lab]\nregion=eu-west-1\nendpoint_url=http://s\n[profile role]\nrole_arn=arn:x\nsource_profile=lab\n"
    )
    assert from_profile() == ({"access_key_id": "A", "secret_access_key": "B"}, None)
    lab = {
        "access_key_id": "C",
        "secret_access_key": "D",
        "session_token": "E",
        "region": "eu-west-1",
        "endpoint": "http://s",
    }
    assert from_profile("lab") == (lab, None)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert from_profile() == (lab, None)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert "region" not in from_profile()[0]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "X")
    assert from_profile() == ({}, None), "the environment's own keys come first"
    assert from_profile("lab")[0]["access_key_id"] == "C", "unless a profile is asked for here"
    with pytest.raises(OptionError, match="no AWS profile 'other'"):
        from_profile("other")
    with pytest.raises(OptionError, match="boto3"):
        from_profile("role")


# -- what errors mean ------------------------------------------------------------------------------------------


class GenericError(Exception):
    """As the library's are called."""


def meant(text: str) -> Exception:
    return errors.translate(GenericError(text), "s3://b/k", "s3")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_busy_storage_is_asked_again(status: int) -> None:
    error = meant(
        f"Server returned non-2xx status code: {status} Something: <Error><Code>SlowDown</Code></Error>"
    )
    assert isinstance(error, NotNow) and error.paced and str(status) in str(error)


@pytest.mark.parametrize("kind", ["Timeout", "Interrupted", "Connect", "Request"])
def test_lost_connections_are_asked_again(kind: str) -> None:
    assert isinstance(meant(f"Generic {{ source: HttpError {{ kind: {kind}, source: SECRET"), NotNow)


def test_whose_fault_it_is() -> None:
    assert isinstance(meant("status code: 404 Not Found"), FileNotFoundError)
    for code in ("AccessDenied", "ExpiredToken", "SignatureDoesNotMatch"):
        denied = meant(f"status code: 403 Forbidden <Code>{code}</Code>")
        assert isinstance(denied, PermissionError) and "AWS_PROFILE" in str(denied) and code in str(denied)
    nobody = meant("Error performing PUT http://169.254.169.254/latest/api/token in 9s - HTTP error")
    assert isinstance(nobody, PermissionError) and "no credentials" in str(nobody)
    assert "region" in str(meant("status code: 301 Moved <Code>PermanentRedirect</Code>"))
    assert json.dumps(str(meant("anything else SECRET"))).count("SECRET") == 0
    with pytest.raises(KeyboardInterrupt):
        errors.translate(KeyboardInterrupt(), "s3://b/k", "s3")
