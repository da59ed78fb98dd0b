"""Several views of a sample: each is what a recipe of its own would give, of an image that is decoded once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace as hr
from headrace import image, views
from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.recipes import Recipe, compile_recipe, deterministic
from headrace.recipes.image import kernels
from headrace.recipes.image.geometry import Geometry
from tests.loader.helpers import jpeg_folder
from tests.recipes.helpers import order, read_only, reserve_none, run
from tests.recipes.test_forms import SOURCE, darker, layout_of, noisy
from tests.sharing.fixtures import place as place  # (a host of the test's own)

INDICES = list(range(len(SOURCE)))
BIG = [image.random_resized_crop(32, scale=(0.4, 1)), image.horizontal_flip(), image.to_float()]
SMALL = [image.random_resized_crop(12, scale=(0.05, 0.4)), image.grayscale(0.5)]
CASES: dict[str, tuple[list[Any], list[list[Any]]]] = {
    "two": ([], [BIG, BIG]),
    "two and four": ([], [BIG, BIG, *[SMALL] * 4]),
    "after a resize": ([image.resize(48)], [BIG, SMALL, [image.random_crop(20), image.random_erasing(1.0)]]),
    "after a crop": ([image.random_crop(30), image.horizontal_flip()], [SMALL, [image.color_jitter(0.4)]]),
    "after a jitter": ([image.color_jitter(0.4, 0.4)], [BIG, SMALL]),
    "rows": ([image.random_resized_crop(16), image.to_float()], [[], [image.random_erasing(1.0)]]),
    "erased": ([], [[image.random_erasing(1.0, value="random"), image.resize((8, 8))], SMALL]),
    "layouts": ([], [[*SMALL, image.layout("NHWC")], [*SMALL, image.layout(contiguous=True)]]),
    "user code": ([], [[noisy, *SMALL], [noisy, image.resize((9, 9))], BIG, [image.center_crop(8), noisy]]),
    "user code last": ([], [BIG, [noisy, image.resize((9, 9))]]),
    "user code before": ([deterministic(darker), noisy], [SMALL, [image.resize((9, 9)), noisy]]),
    "one": ([], [BIG]),
}


@dataclass(frozen=True)
class Pass(Geometry):
    """Takes as many random numbers as another step, and does nothing."""

    count: int

    @property
    def draws(self) -> int:  # type: ignore[override]
        return self.count

    @property
    def random(self) -> bool:
        return True

    def fold(self, view: Any, numbers: Any) -> None:
        pass


def alone(common: list[Any], branches: list[list[Any]], at: int) -> Recipe:
    """One of the views as a recipe of its own, with the same random numbers."""
    gone = [Pass(getattr(step, "draws", 0)) for branch in branches[:at] for step in branch]
    return Recipe(SOURCE, image.decode(), [*common, *gone, *branches[at]])


def forked(name: str) -> Recipe:
    common, branches = CASES[name]
    return Recipe(SOURCE, image.decode(), [*common, views(*branches)])


@pytest.mark.parametrize("name", CASES)
def test_each_view_is_that_of_a_recipe_of_its_own(name: str) -> None:
    program = compile_recipe(forked(name), caches_decoded=True)
    layout = layout_of(program, INDICES)
    work = order(SOURCE, INDICES, keep=True)
    out = run(program, work, layout)
    assert not work.faults
    np.testing.assert_array_equal(out[-1], SOURCE.targets)
    for at in range(len(CASES[name][1])):
        single = compile_recipe(alone(*CASES[name], at), caches_decoded=True)
        same = layout_of(single, INDICES)
        assert same.fields[0] == layout.fields[at]
        np.testing.assert_array_equal(run(single, order(SOURCE, INDICES), same)[0], out[at])


@pytest.mark.parametrize("name", CASES)
def test_views_do_not_depend_on_what_is_cached_or_how_orders_are_cut(name: str) -> None:
    recipe = forked(name)
    program = compile_recipe(recipe, caches_decoded=True)
    layout = layout_of(program, INDICES)
    first = order(SOURCE, INDICES, keep=True)
    expected = run(program, first, layout)
    assert set(first.kept) == set(INDICES)
    cached = {index: read_only(value) for index, value in first.kept.items()}
    some = {index: value for index, value in cached.items() if index % 3}
    for options in (
        {},
        {"cached": cached},
        {"cached": some, "keep": True},
        {"keep": True, "reserve": reserve_none},
    ):
        work = order(SOURCE, INDICES, **options)
        for got, want in zip(run(program, work, layout), expected, strict=True):
            np.testing.assert_array_equal(got, want)
    for index in INDICES:  # what is kept is as it was decoded, whatever user code did to its views
        np.testing.assert_array_equal(first.kept[index], cached[index])
    parts = [run(program, order(SOURCE, part), layout) for part in (INDICES[:3], INDICES[3:])]
    for at, want in enumerate(expected):
        np.testing.assert_array_equal(np.concatenate([part[at] for part in parts]), want)


@pytest.mark.parametrize("name", CASES)
def test_samples_are_the_rows(name: str) -> None:
    program = compile_recipe(forked(name), caches_decoded=False)
    samples = program.samples(order(SOURCE, [4, 0]))
    layout = program.layout
    out = run(program, order(SOURCE, [4, 0]), layout)
    for row, (values, target) in enumerate(samples):
        assert type(values) is list and len(values) == len(CASES[name][1])
        assert target == out[-1][row] == [40, 0][row]
        for value, field, memory in zip(values, layout.fields, out, strict=False):
            got = memory[row].transpose(2, 0, 1) if field.channels_last else memory[row]
            np.testing.assert_array_equal(value, got)


def test_user_code_may_keep_what_it_got() -> None:
    program = compile_recipe(Recipe(SOURCE, image.decode(), views(SMALL, [noisy])), caches_decoded=False)
    (((_, kept), _),) = program.samples(order(SOURCE, [4]))
    before = kept.copy()
    program.samples(order(SOURCE, [0, 1, 3]))
    np.testing.assert_array_equal(kept, before)


@pytest.mark.parametrize("caches", [False, True])
def test_an_image_is_decoded_once(caches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    decode, rows = kernels.decode_many, kernels.rows_many

    def counting(ws: Any, blobs: Any, *rest: Any, **options: Any) -> Any:
        decoded.append(len(blobs))
        return decode(ws, blobs, *rest, **options)

    def looking(ws: Any, sources: Any, jobs: Any, *rest: Any) -> Any:
        assert not jobs["is_jpeg"].any()
        return rows(ws, sources, jobs, *rest)

    monkeypatch.setattr(kernels, "decode_many", counting)
    monkeypatch.setattr(kernels, "rows_many", looking)
    work = order(SOURCE, [0, 1, 3, 4])  # JPEGs
    run(compile_recipe(forked("two and four"), caches_decoded=caches), work)
    assert decoded == [4] and work.decoded == 4


def test_a_bad_view_is_a_bad_sample() -> None:
    def fails(value: np.ndarray) -> np.ndarray:
        if value.shape[0] == 64:
            raise RuntimeError("no view of it")
        return value

    branches = [SMALL, [fails, image.resize((8, 8))], [image.resize((8, 8))]]
    program = compile_recipe(Recipe(SOURCE, image.decode(), views(*branches)), caches_decoded=False)
    good, work = (order(SOURCE, part) for part in ([0, 1, 3], [0, 1, 2, 3]))
    layout = layout_of(program, [0])
    expected, out = run(program, good, layout), run(program, work, layout)
    assert set(work.faults) == {2} and "no view of it" in work.faults[2].reason
    for got, want in zip(out, expected, strict=True):
        np.testing.assert_array_equal(got[[0, 1, 3]], want)


def test_the_decoded_form_is_one_image() -> None:
    plain = Recipe(SOURCE, image.decode(), [image.resize(48), *BIG])
    many = Recipe(SOURCE, image.decode(), [image.resize(48), views(BIG, SMALL)])
    assert many.lead == 1
    assert many.fingerprint(Form.DECODED) == plain.fingerprint(Form.DECODED)
    augmented = {
        Recipe(SOURCE, image.decode(), [image.resize(48), views(*some)]).fingerprint(Form.AUGMENTED)
        for some in (
            [BIG],
            [BIG, SMALL],
            [SMALL, BIG],
            [BIG[:2], SMALL],
            [BIG, SMALL[:1]],
        )
    }
    assert len({*augmented, plain.fingerprint(Form.AUGMENTED)}) == 6
    twice = Recipe(SOURCE, image.decode(), views(BIG, times=2))
    assert twice.fingerprint(Form.AUGMENTED) == Recipe(SOURCE, image.decode(), [views(BIG, BIG)]).fingerprint(
        Form.AUGMENTED
    )


def test_views_that_cannot_be_are_refused() -> None:
    refused = [
        (lambda: views(), "a list of steps for each view"),
        (lambda: views(image.resize(8)), "a list of steps for each view"),
        (lambda: views(BIG, times=0), "times=0"),
        (lambda: views([3]), r"views\(\)\[0\]\[0\]"),
        (lambda: Recipe(SOURCE, image.decode(), [views(BIG), image.resize(8)]), "must be the last step"),
        (lambda: Recipe(SOURCE, image.decode(), views([views(BIG)])), "no views of its own"),
        (lambda: Recipe(SOURCE, None, views(BIG)), "needs an image"),
        (
            lambda: Recipe(SOURCE, image.decode(), [image.to_float(), views([image.resize(8)])]),
            "before normalise",
        ),
        (lambda: Recipe(SOURCE, image.decode(), views(BIG), batch=image.mixup(80)), "several of each sample"),
    ]
    for make, reason in refused:
        with pytest.raises(OptionError, match=reason):
            make()


# -- in a loader ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return jpeg_folder(tmp_path_factory.mktemp("views"), count=12)


def crops(folder: Path, **options: Any) -> Recipe:
    return Recipe(hr.folder(folder), image.decode(), views(BIG, BIG, SMALL), **options)


def epoch(recipe: Recipe, *, done: int = 0, **options: Any) -> list[Any]:
    options = {"batch_size": 5, "shuffle": True, "seed": 5, "num_workers": 0, **options}
    with hr.DataLoader(recipe, **options) as loader:
        batches, states = [], []
        for values, labels in loader:
            batches.append([*(view.clone() for view in values), labels.clone()])
            states.append(json.loads(json.dumps(loader.state_dict())))
    if done:
        with hr.DataLoader(recipe, **options) as loader:
            loader.load_state_dict(states[done - 1])
            return [[*values, labels] for values, labels in loader]
    return batches


def test_batches_are_lists_of_tensors(folder: Path) -> None:
    batches = epoch(crops(folder))
    assert [[tuple(part.shape) for part in batch] for batch in batches[1:]] == [
        [(rows, 3, 32, 32), (rows, 3, 32, 32), (rows, 3, 12, 12), (rows,)] for rows in (5, 2)
    ]
    assert [part.dtype for part in batches[0]] == [torch.float32, torch.float32, torch.uint8, torch.int64]
    assert not torch.equal(batches[0][0], batches[0][1])
    for batch in hr.DataLoader(
        Recipe(hr.folder(folder, labels=False), image.decode(), views(SMALL, BIG)), 12
    ):
        assert [len(view) for view in batch] == [12, 12]


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"cache": "8MiB"}, {"done": 1}], ids=str)
def test_batches_do_not_depend_on_how_they_are_made(folder: Path, options: Any) -> None:
    ours, expected = epoch(crops(folder), **options), epoch(crops(folder))[options.get("done", 0) :]
    for mine, other in zip(ours, expected, strict=True):
        assert all(map(torch.equal, mine, other))


@pytest.mark.usefixtures("place")
def test_jobs_share_all_views_of_a_sample(folder: Path) -> None:
    """What one job augmented, the other one gets: all views, and its own targets."""
    options = {"batch_size": 4, "shuffle": True, "share": True, "cache": "8MiB", "num_workers": 0}
    with hr.DataLoader(crops(folder), **options) as one, hr.DataLoader(crops(folder), **options) as other:
        found: dict[int, list[Any]] = {}
        for pair in zip(one, other, strict=True):
            for values, _ in pair:
                for row in range(4):
                    sample = [view[row].clone() for view in values]
                    found.setdefault(hash(sample[0].numpy().tobytes()), []).append(sample)
        shared = [samples for samples in found.values() if len(samples) == 2]
        assert shared
        assert all(torch.equal(a, b) for first, second in shared for a, b in zip(first, second, strict=True))


def test_bad_samples_are_left_out_of_every_view(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_bytes(b"no image")
    paths = [str(path) for path in sorted(folder.rglob("*.jpg"))[:4]]
    paths[1] = str(bad)
    steps = views([image.resize((8, 8))], [image.resize((4, 4))])
    good, ours = (
        Recipe(hr.files(some, targets=range(len(some))), image.decode(), steps)
        for some in (paths[:1] + paths[2:], paths)
    )
    (expected,) = epoch(good, shuffle=False)
    (found,) = epoch(ours, shuffle=False, on_error="skip", error_budget=1)
    assert all(map(torch.equal, found[:2], expected[:2])) and found[2].tolist() == [0, 2, 3]


def test_samples_and_collate(folder: Path) -> None:
    (big, _, small), label = hr.DataLoader(crops(folder)).dataset[0]
    assert big.shape == (3, 32, 32) and small.shape == (3, 12, 12) and label == 0
    recipe = crops(folder, collate=lambda samples: [len(values) for values, _ in samples])
    assert list(hr.DataLoader(recipe, batch_size=4, num_workers=0)) == [[3] * 4] * 3
