"""Samples of several fields: taken apart, each field decoded by its own step."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import headrace as hr
from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.core.tar import header_of
from headrace.recipes import Recipe, compile_recipe
from headrace.recipes.collating import collated
from headrace.recipes.image import kernels
from tests.recipes.helpers import MemorySource, jpeg, order, picture, png


def blob(**members: bytes) -> bytes:
    """A piece of a tar archive, cut off behind the last byte."""
    out = b""
    for name, data in members.items():
        out += bytes(-len(out) % 512) + header_of(f"a/b.{name.replace('_', '.')}".encode(), len(data)) + data
    return out


BLOBS = [
    blob(
        jpg=jpeg(picture(20 + at, 30, at)),
        json=b'{"at": %d}' % at,
        seg_png=png(picture(20 + at, 30, at)[..., :1]),
        txt=f"№ {at}".encode(),
    )
    for at in range(4)
]
SOURCE = MemorySource(BLOBS)
STEP = hr.fields(
    {"seg.png": hr.image.decode("L")},
    jpg=[hr.image.decode(), hr.image.resize((16, 12))],
    json=json.loads,
    txt=bytes.decode,
)


def samples(recipe: Recipe, *, caches: bool = False, **options: Any) -> tuple[list[Any], Any]:
    work = order(recipe.source, range(len(recipe)), **options)
    return compile_recipe(recipe, caches_decoded=caches).samples(work), work


def test_every_field_has_its_own_step() -> None:
    found, work = samples(Recipe(SOURCE, STEP))
    assert not work.faults
    plain, _ = samples(
        Recipe(
            MemorySource([jpeg(picture(20 + at, 30, at)) for at in range(4)]),
            hr.image.decode(reduce=False),
            [hr.image.resize((16, 12))],
        )
    )
    for at, sample in enumerate(found):
        assert list(sample) == ["seg.png", "jpg", "json", "txt"]
        assert sample["json"] == {"at": at} and sample["txt"] == f"№ {at}"
        assert sample["jpg"].shape == (3, 16, 12) and np.array_equal(sample["jpg"], plain[at])
        whole = kernels.decode_any(png(picture(20 + at, 30, at)[..., :1]), mode="GRAY", max_pixels=10**6)
        assert np.array_equal(sample["seg.png"], whole.transpose(2, 0, 1))


def test_what_is_cached_is_the_same() -> None:
    recipe = Recipe(SOURCE, STEP)
    found, work = samples(recipe, caches=True, keep=True)
    assert set(work.kept) == {0, 1, 2, 3}
    again, later = samples(recipe, caches=True, cached=work.kept)
    assert not later.faults
    assert all(
        one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
        for one, other in zip(found, again, strict=True)
    )


def test_steps_of_the_users_own_follow() -> None:
    def turned(sample: dict[str, Any]) -> Any:
        return sample["jpg"][:, :, ::-1], sample["json"]["at"]

    found, _ = samples(Recipe(SOURCE, STEP, [turned]))
    plain, _ = samples(Recipe(SOURCE, STEP))
    assert [one[1] for one in found] == [0, 1, 2, 3]
    assert np.array_equal(found[2][0], plain[2]["jpg"][:, :, ::-1])


def test_fields_that_are_missing_or_broken_are_bad_samples() -> None:
    source = MemorySource([BLOBS[0], blob(jpg=b"?", txt=b""), b"no archive" * 99, BLOBS[1]])
    found, work = samples(Recipe(source, hr.fields(jpg=hr.image.decode(), json=json.loads)))
    assert sorted(work.faults) == [1, 2] and found[1] is found[2] is None
    assert work.faults[1].reason == "it has no field 'json', but jpg, txt"
    assert "no header" in work.faults[2].reason
    assert found[3]["json"] == {"at": 1}
    broken = MemorySource([blob(jpg=b"?", json=b"{"), BLOBS[0]])
    _, work = samples(Recipe(broken, hr.fields(jpg=hr.image.decode(), json=json.loads)))
    assert sorted(work.faults) == [0]
    _, work = samples(Recipe(broken, hr.fields(json=json.loads)))
    assert "JSONDecodeError" in work.faults[0].reason


def test_what_fails_beside_what_is_cached_is_named_right() -> None:
    recipe = Recipe(
        MemorySource([BLOBS[0], BLOBS[1], blob(jpg=b"?"), BLOBS[3]]), hr.fields(jpg=hr.image.decode())
    )
    _, work = samples(Recipe(SOURCE, recipe.decode), caches=True, keep=True)
    found, later = samples(recipe, caches=True, cached={0: work.kept[0], 1: work.kept[1]})
    assert list(later.faults) == [2] and found[2] is None
    assert [one["jpg"].shape for one in found if one] == [(3, 20, 30), (3, 21, 30), (3, 23, 30)]


def test_fingerprints_follow_the_steps() -> None:
    def key(*given: Any, **named: Any) -> str:
        return Recipe(SOURCE, hr.fields(*given, **named)).share_key(Form.DECODED)

    known = [
        key(jpg=hr.image.decode()),
        key(png=hr.image.decode()),
        key(jpg=hr.image.decode("L")),
        key(jpg=[hr.image.decode(), hr.image.resize(9)]),
        key(jpg=hr.image.decode(), json=json.loads),
    ]
    assert len({*known}) == len(known)
    assert key({"JPG": [hr.image.decode()]}) == known[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hr.fields(), "name the fields"),
        (lambda: hr.fields(jpg=hr.image.resize(9)), "begins with image.decode"),
        (lambda: hr.fields(jpg=[hr.image.decode(), hr.image.horizontal_flip()]), "random"),
        (lambda: hr.fields(jpg=[json.loads, hr.image.resize(9)]), "behind image.decode"),
        (lambda: hr.fields(jpg=[hr.image.decode(), json.loads]), "only image steps"),
        (lambda: hr.fields(jpg=7), "neither a step of headrace nor a callable"),
        (lambda: hr.fields(jpg=json.loads, JPG=json.loads), "are one field"),
        (lambda: Recipe(SOURCE, STEP, [hr.image.resize(9)]), "fields.. gives a dict"),
    ],
)
def test_what_cannot_be_meant(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_who_collates() -> None:
    texts = MemorySource([jpeg(picture(20, 20))], ["a.png"])
    assert Recipe(texts, hr.image.decode()).collate is collated
    assert Recipe(SOURCE, STEP).collate is collated
    assert Recipe(SOURCE, STEP, collate=list).collate is list
    assert Recipe(texts, hr.image.decode(), target_transform=len).collate is None
    assert Recipe(texts, hr.image.decode(), follow=hr.image.mask()).collate is None, "they are names of files"


def test_batches_are_those_of_torch() -> None:
    listed = [
        {"x": np.arange(3) + at, "t": f"{at}", "n": at, "f": 0.5, "deep": ({"b": True}, np.float32(at))}
        for at in range(3)
    ]
    ours, theirs = collated(listed), default_collate(listed)
    assert ours.keys() == theirs.keys() and ours["t"] == theirs["t"] == ["0", "1", "2"]
    for name in ("x", "n", "f"):
        assert torch.equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype
    assert torch.equal(ours["deep"][1], theirs["deep"][1]) and ours["deep"][0]["b"].tolist() == [True] * 3
    images = [np.zeros((4, 5, 3), np.uint8).transpose(2, 0, 1)] * 2
    assert collated(images).is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="pass collate="):
        collated([np.zeros(3), np.zeros(4)])
