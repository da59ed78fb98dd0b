"""mixup and cutmix: the plain formula, whoever prepared the rows and wherever the job goes on from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.core.forms import Form
from headrace.loader import pinning
from headrace.recipes.image import fallback, kernels, mixing
from headrace.recipes.image.rowspec import BLENDED
from headrace.sampling.uniform import epoch_order
from tests.loader.helpers import assert_same, drain, recipe
from tests.sharing.fixtures import place as place  # (a host of the test's own)

ONE = hr.image.one_of(hr.image.mixup(3, alpha=0.4), hr.image.cutmix(3), weights=(1, 2))
LAYOUTS = {
    "by pixel": [],
    "planes": [hr.image.layout(contiguous=True)],
    "half": [hr.image.to_float("float16")],
    "brain": [hr.image.to_float("bfloat16")],
    "floats": [hr.image.to_float()],
    "NHWC": [hr.image.to_float(), hr.image.layout("NHWC")],
}

OFF = {"half": 5e-4, "brain": 4e-3, "floats": 2e-7, "NHWC": 2e-7}


def crops(folder: Path, *steps: Any, **options: Any) -> hr.Recipe:
    return hr.Recipe(
        hr.folder(folder), hr.image.decode(), [hr.image.random_resized_crop(20), *steps], **options
    )


def epoch(recipe: hr.Recipe, *, done: int = 0, **options: Any) -> list[Any]:
    """The batches of epoch 1, from ``done`` on."""
    options = {"batch_size": 7, "shuffle": True, "seed": 5, "num_workers": 0, **options}
    with hr.DataLoader(recipe, **options) as loader:
        loader.set_epoch(1)
        if done:
            for at, _ in enumerate(loader, 1):
                if at == done:
                    state = json.loads(json.dumps(loader.state_dict()))
                    break
            with hr.DataLoader(recipe, **options) as other:
                other.load_state_dict(state)
                return drain(other)
        return drain(loader)


def by_hand(images: torch.Tensor, labels: torch.Tensor, mix: mixing.Mix, *, first: int) -> list[torch.Tensor]:
    """What torchvision does, written down. ``first``: the dimension of height; that of width follows."""
    rolled, weight = images.roll(1, 0), mix.weight
    mixed = images.clone()
    if mix.box is None:
        mixed = images.double().mul(weight).add_(rolled.double().mul(1 - weight))
        mixed = mixed.round().to(torch.uint8) if images.dtype == torch.uint8 else mixed.to(images.dtype)
    else:
        top, left, bottom, right = mix.box
        box = (slice(None),) * first + (slice(top, bottom), slice(left, right))
        mixed[box] = rolled[box]
        height, width = images.shape[first : first + 2]
        assert weight == 1 - (bottom - top) * (right - left) / (height * width)
    shares = torch.nn.functional.one_hot(labels, 3).float()
    return [mixed, shares.mul(weight).add_(shares.roll(1, 0).mul(1 - weight))]


def mixes(step: Any, batches: list[Any], samples: list[int], side: int = 20) -> list[mixing.Mix]:
    """What is drawn for the batches of epoch 1 with seed 5."""
    ends = np.cumsum([len(labels) for _, labels in batches]).tolist()
    return [
        step.draw(mixing.numbers_of(5, 1, end, samples[end - len(labels)]), side, side)
        for end, (_, labels) in zip(ends, batches, strict=True)
    ]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.slow
def test_batches_are_those_of_the_plain_formula(folder: Path, name: str) -> None:
    plain = epoch(crops(folder, *LAYOUTS[name]))
    mixed = epoch(crops(folder, *LAYOUTS[name], batch=ONE))
    chosen = mixes(ONE, plain, epoch_order(24, 5, 1).tolist())
    assert {mix.box is None for mix in chosen} == {True, False}
    for ours, (images, labels), mix in zip(mixed, plain, chosen, strict=True):
        images, shares = by_hand(images, labels, mix, first=1 if name == "NHWC" else 2)
        assert ours[0].dtype == images.dtype
        # Blends are rounded to single precision, and then to what the row is of.
        off = ours[0].double().sub(images.double()).abs().max()
        assert off <= (OFF.get(name, 1) if mix.box is None else 0)
        assert torch.equal(ours[1], shares)
        torch.testing.assert_close(ours[1].sum(1), torch.ones(len(labels)))


@pytest.mark.parametrize(
    "options", [{"num_workers": 1}, {"num_workers": 2}, {"cache": "8MiB"}, {"done": 2}], ids=str
)
def test_batches_do_not_depend_on_who_prepares_them(folder: Path, options: Any) -> None:
    mixed = crops(folder, hr.image.to_float(), batch=ONE)
    # (with a cache, images are decoded at full resolution)
    expected = epoch(mixed, cache="8MiB") if "cache" in options else epoch(mixed)
    assert_same(epoch(mixed, **options), expected[options.get("done", 0) :])


@pytest.mark.usefixtures("place")
def test_jobs_that_share_get_the_same(folder: Path) -> None:
    mixed = crops(folder, hr.image.to_float(), batch=ONE)
    expected = epoch(mixed, cache="8MiB")
    shared = {"share": True, "cache": "8MiB", "sampling": "uniform"}
    assert_same(epoch(mixed, **shared), expected)
    assert_same(epoch(mixed, done=1, **shared), expected[1:])
    # Where the host draws, samples come in another order; shares still add up, and nothing mixed is cached.
    batches = epoch(mixed, share=True, cache="8MiB")
    assert sum(len(labels) for _, labels in batches) == 24
    torch.testing.assert_close(sum(labels.sum(0) for _, labels in batches), torch.full((3,), 8.0))


def test_ranks_of_a_step_are_mixed_differently(folder: Path) -> None:
    mixed = crops(folder, batch=hr.image.mixup(3))
    one, other = (epoch(mixed, rank=rank, world_size=2)[0][1].amax(1).unique() for rank in (0, 1))
    assert not torch.equal(one, other)


@pytest.mark.parametrize("step", [hr.image.mixup(3), hr.image.cutmix(3, alpha=50)], ids=str)
@pytest.mark.parametrize(("rule", "labels"), [("skip", [0, 1, 0, 1]), ("substitute", [0, 1, 0, 0, 1, 1])])
def test_bad_samples_are_left_out_before_mixing(
    folder: Path, tmp_path: Path, step: Any, rule: str, labels: list[int]
) -> None:
    paths = [str(path) for path in sorted(folder.rglob("*.jpg"))[:4]]
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    source = hr.files([*paths[:2], str(bad), *paths[2:], str(bad)], targets=[0, 1, 2, 0, 1, 2])
    steps = [hr.image.resize((16, 16)), hr.image.to_float()]
    options = {"batch_size": 6, "shuffle": False, "error_budget": 2, "on_error": rule}
    plain, ours = (
        epoch(hr.Recipe(source, hr.image.decode(), steps, batch=one), **options)[0] for one in (None, step)
    )
    assert plain[1].tolist() == labels
    mix = step.draw(mixing.numbers_of(5, 1, 6, 0), 16, 16)
    images, shares = by_hand(plain[0], plain[1], mix, first=2)
    torch.testing.assert_close(ours[0], images)
    assert torch.equal(ours[1], shares)


def test_what_is_cached_is_not_mixed(folder: Path) -> None:
    plain, mixed = crops(folder), crops(folder, batch=ONE)
    assert all(plain.fingerprint(form) == mixed.fingerprint(form) for form in (Form.DECODED, Form.AUGMENTED))
    assert all(plain.share_key(form) == mixed.share_key(form) for form in (Form.DECODED, Form.AUGMENTED))
    image, label = hr.DataLoader(mixed).dataset[3]
    assert image.shape == (3, 20, 20) and isinstance(label, int)


def test_a_batch_that_is_not_mixed_still_has_shares(folder: Path) -> None:
    never = epoch(crops(folder, batch=hr.image.cutmix(4, p=0)))
    for ours, (images, labels) in zip(never, epoch(crops(folder)), strict=True):
        assert torch.equal(ours[0], images)
        assert torch.equal(ours[1], torch.nn.functional.one_hot(labels, 4).float())


def test_samples_of_any_shape_are_blended() -> None:
    floats = hr.deterministic(lambda array: {"a": array.astype(np.float64), "b": array[0]})
    source = recipe(8).source
    plain = hr.Recipe(source, hr.synthetic.decode(), [floats], target_transform=lambda target: target % 3)
    mixed = hr.Recipe(
        source, hr.synthetic.decode(), [floats], None, lambda target: target % 3, hr.image.mixup(3)
    )
    options = {"batch_size": 8, "seed": 5, "num_workers": 0}
    ((images, labels),), ((ours, shares),) = (list(hr.DataLoader(one, **options)) for one in (plain, mixed))
    mix = hr.image.mixup(3).draw(mixing.numbers_of(5, 0, 8, 0), 1, 1)
    for name in "ab":
        expected = by_hand(images[name], labels, mix, first=1)
        torch.testing.assert_close(ours[name], expected[0])
        assert torch.equal(shares, expected[1])


@settings(max_examples=40)
@given(
    rows=st.integers(1, 9),
    parts=st.integers(1, 5),
    weight=st.floats(0, 1),
    dtype=st.sampled_from(["uint8", "float32", "float16"]),
)
def test_pieces_of_a_batch_can_be_mixed_at_the_same_time(
    rows: int, parts: int, weight: float, dtype: str
) -> None:
    noise = np.random.default_rng(3).random((rows, 4, 5, 3)) * 255
    alone, together = noise.astype(dtype), noise.astype(dtype)
    for piece in mixing.blend(alone, weight, dtype):
        piece()
    pieces = mixing.blend(together, weight, dtype, parts)
    assert len(pieces) == min(rows, parts)
    for piece in reversed(pieces):
        piece()
    np.testing.assert_array_equal(alone, together)


@pytest.mark.skipif(not kernels.NATIVE, reason="the C kernels are not in use")
@pytest.mark.parametrize("dtype", BLENDED)
def test_the_kernels_agree(dtype: str) -> None:
    noise = np.random.default_rng(5)
    storage = "uint16" if dtype in ("bfloat16", "float16") else dtype
    rows: Any = (
        noise.integers(0, 256, (4, 300), np.uint8) if dtype == "uint8" else noise.normal(size=(4, 300))
    )
    if storage == "uint16":  # every number that there is
        rows = np.stack([noise.permutation(1 << 16) for _ in range(3)])
    rows = rows.astype(storage).view("float16" if dtype == "float16" else storage)
    before = rows[-1].copy()
    for weight in (0.0, 0.25, 0.7234, 1.0):
        ours, theirs = rows.copy(), rows.copy()
        kernels.blend_rows(ours, before, weight, dtype)
        with np.errstate(all="ignore"):
            fallback.blend_rows(theirs, before, weight, dtype)
        odd = np.zeros(rows.shape, bool)
        if storage == "uint16":  # what is no number has many ways to say so
            top = {"float16": 0x7C00, "bfloat16": 0x7F80}[dtype]
            odd = (ours.view("uint16") & 0x7FFF) > top
            np.testing.assert_array_equal(odd, (theirs.view("uint16") & 0x7FFF) > top)
        np.testing.assert_array_equal(ours[~odd], theirs[~odd])
    for wrong in ((rows, before[:7], 0, 0.5), (rows, before, 9, 0.5), (rows, before, 0, 1.5)):
        with pytest.raises(ValueError, match="out of range"):
            kernels._kernels.blend_rows(*wrong)


def test_large_batches_are_mixed_by_several_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = crops(folder, hr.image.resize((100, 100)), batch=hr.image.mixup(3))
    expected = epoch(large, batch_size=24)
    monkeypatch.setattr("headrace.loader.mixing.few_hands", lambda: 3)
    assert_same(epoch(large, batch_size=24), expected)
    pinning._hands().shutdown()
    pinning._hands.cache_clear()


@pytest.mark.parametrize("alpha", [0.01, 0.2, 1.0, 1.5, 8.0])
def test_weights_have_the_beta_distribution(alpha: float) -> None:
    numbers = mixing.numbers_of(1, 2, 3, 4)
    ours = np.sort([mixing.symmetric_beta(alpha, numbers) for _ in range(3000)])
    theirs = np.sort(np.random.default_rng(0).beta(alpha, alpha, 100_000))
    assert 0 <= ours[0] < ours[-1] <= 1
    at = np.linspace(0, 1, 101)[1:-1]
    below = [np.searchsorted(found, at) / len(found) for found in (ours, theirs)]
    # Distributions that are the same are this far from each other once in a thousand times.
    assert np.abs(below[0] - below[1]).max() < 0.036


def test_boxes_are_as_large_as_torchvisions() -> None:
    step = hr.image.cutmix(3)
    drawn = [step.draw(mixing.numbers_of(0, 0, at, 0), 30, 20) for at in range(2000)]
    boxes = np.array([mix.box for mix in drawn])
    assert boxes.min() == 0 and boxes[:, 2].max() == 30 and boxes[:, 3].max() == 20
    noise = np.random.default_rng(0)
    half = 0.5 * np.sqrt(1 - noise.random(100_000))
    sides = []
    for length, (low, high) in ((30, (0, 2)), (20, (1, 3))):
        centre, reach = noise.integers(0, length, 100_000), (half * length).astype(int)
        edges = np.maximum(centre - reach, 0), np.minimum(centre + reach, length)
        sides.append(edges[1] - edges[0])
        for ours, theirs in zip((boxes[:, low], boxes[:, high]), edges, strict=True):
            assert abs(ours.mean() - theirs.mean()) < 4 * theirs.std() / 2000**0.5
    area = 1 - sides[0] * sides[1] / 600
    assert abs(np.mean([mix.weight for mix in drawn]) - area.mean()) < 4 * area.std() / 2000**0.5


def test_what_cannot_be_mixed_is_refused(folder: Path) -> None:
    step = hr.image.cutmix(3)
    refused = [
        (lambda: crops(folder, step), "write batch="),
        (lambda: crops(folder, batch=[step]), "expected image.mixup"),
        (lambda: crops(folder, batch=step, collate=list), "leave one out"),
        (lambda: crops(folder, batch=hr.image.cutmix(2)), "class numbers, 0 to 1"),
        (lambda: crops(folder, lambda image: image, batch=step), "end augment= with an image step"),
        (lambda: hr.Recipe(hr.folder(folder, labels=False), hr.image.decode(), batch=step), "has none"),
        (lambda: hr.DataLoader(crops(folder, batch=step), collate_fn=list), "leave one out"),
        (lambda: hr.DataLoader(crops(folder, batch=step), batch_size=None), "batch_size=None"),
        (lambda: hr.DataLoader(crops(folder, batch=step)).dataset.__getitems__([0]), "another loader"),
        (lambda: hr.image.mixup(1), "number of classes"),
        (lambda: hr.image.mixup(3, alpha=0), "above zero"),
        (lambda: hr.image.cutmix(3, p=2), "probability"),
        (lambda: hr.image.one_of(), "give steps"),
        (lambda: hr.image.one_of(step, hr.image.mixup(4)), "must agree"),
        (lambda: hr.image.one_of(step, weights=[0]), "not all zero"),
    ]
    for make, reason in refused:
        with pytest.raises(hr.OptionError, match=reason):
            make()
    floats = crops(folder, batch=step, target_transform=float)
    with pytest.raises(hr.OptionError, match="class numbers"):
        epoch(floats)
    large = crops(folder, batch=step, target_transform=lambda target: target + 2)
    with pytest.raises(hr.HeadraceError, match="a target of 3"):
        epoch(large, shuffle=False, batch_size=24)
    wide = hr.Recipe(
        recipe(8).source, hr.synthetic.decode(), [lambda a: a.astype(np.int32)], batch=hr.image.mixup(8)
    )
    with pytest.raises(hr.OptionError, match="cannot mix int32"):
        epoch(wide)
