"""A row is the same whichever form it starts from, whatever is cached, and however orders are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from headrace import image, synthetic
from headrace.cache import extents
from headrace.recipes import Recipe, compile_recipe, deterministic
from headrace.recipes.compile import decoded_form
from headrace.recipes.values import pack
from tests.recipes.helpers import MemorySource, jpeg, order, picture, png, read_only, reserve_none, rows, run

SIZES = [(60, 80), (97, 41), (64, 64), (33, 120), (150, 149), (40, 40), (71, 93), (128, 90)]
BLOBS = [
    png(picture(h, w, seed)) if seed in (2, 5) else jpeg(picture(h, w, seed))
    for seed, (h, w) in enumerate(SIZES)
]
SOURCE = MemorySource(BLOBS, np.arange(len(BLOBS)) * 10)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def noisy(value: np.ndarray) -> np.ndarray:
    """User code that writes to what it gets, as many augmentations do."""
    value[: np.random.randint(1, 9)] ^= 0xFF
    return value


def darker(value: np.ndarray) -> np.ndarray:
    return value // 2


CHAINS: dict[str, list[Any]] = {
    "training": [image.random_resized_crop(32), image.horizontal_flip(), image.normalise(MEAN, STD)],
    "training uint8": [image.random_resized_crop(32), image.horizontal_flip()],
    "reduced": [image.random_resized_crop(8), image.horizontal_flip()],
    "reduced and padded": [image.vertical_flip(), image.random_resized_crop((9, 5)), image.center_crop(12)],
    "reduced by a resize": [image.horizontal_flip(), image.resize((16, 20)), image.to_float()],
    "planar": [image.random_resized_crop(32), image.layout("NCHW", contiguous=True)],
    "planar late": [
        image.random_resized_crop(24),
        image.to_float(),
        image.random_erasing(1.0),
        image.layout(contiguous=True),
    ],
    "half": [image.random_resized_crop(32), image.normalise(MEAN, STD, dtype="float16")],
    "bfloat16": [
        image.random_resized_crop(32),
        image.normalise(MEAN, STD, dtype="bfloat16"),
        image.random_erasing(),
    ],
    "validation": [image.resize(48), image.center_crop(40), image.normalise(MEAN, STD)],
    "validation uint8": [image.resize(48), image.center_crop(40)],
    "resize first": [image.resize(48), image.random_crop(40), image.horizontal_flip()],
    "resize twice": [image.resize(48), image.random_resized_crop(24), image.vertical_flip()],
    "resize thrice": [image.random_resized_crop(64), image.resize(20), image.center_crop(24)],
    "padded": [
        image.random_crop(64, padding=8, pad_if_needed=True, fill=7),
        image.horizontal_flip(),
        image.to_float(),
    ],
    "padded uint8": [image.horizontal_flip(), image.random_crop(48, padding=(5, 9), pad_if_needed=True)],
    "reflected": [image.resize((32, 32)), image.random_crop(32, padding=4, padding_mode="reflect")],
    "jitter": [
        image.random_resized_crop(32),
        image.color_jitter(0.4, 0.4, 0.4, 0.1),
        image.grayscale(0.5),
        image.to_float(),
    ],
    "jitter first": [image.color_jitter(0.4, 0.4, 0.4, 0.1), image.random_resized_crop(16)],
    "blurred": [
        image.center_crop(30),
        image.gaussian_blur(5),
        image.rotation(30),
        image.random_erasing(value="random"),
    ],
    "deterministic jitter": [image.color_jitter(brightness=(0.5, 0.5)), image.random_resized_crop(16)],
    "erased on both sides": [
        image.random_erasing(1.0, value="random"),
        image.resize((20, 30)),
        image.to_float(),
        image.random_erasing(1.0, value="random"),
    ],
    "deterministic floats": [
        image.resize((20, 20)),
        image.to_float(),
        image.random_erasing(0.7),
        image.random_erasing(0.7),
    ],
    "user code last": [image.random_resized_crop(32), noisy],
    "user code first": [noisy, image.random_resized_crop(32), image.normalise(MEAN, STD)],
    "user code after a resize": [image.resize((32, 32)), noisy],
    "declared user code": [deterministic(darker), image.random_resized_crop(32), noisy, image.to_float()],
    "all declared": [image.resize((16, 16)), deterministic(darker)],
}


def layout_of(program: Any, indices: list[int]) -> Any:
    if program.layout is None:
        program.samples(order(SOURCE, indices[:1]))
    return program.layout


@pytest.mark.parametrize("name", CHAINS)
def test_rows_do_not_depend_on_what_is_cached(name: str) -> None:
    recipe = Recipe(SOURCE, image.decode(), CHAINS[name])
    indices = list(range(len(SOURCE)))
    program = compile_recipe(recipe, caches_decoded=True)
    layout = layout_of(program, indices)

    first = order(SOURCE, indices, keep=True)
    expected = run(program, first, layout)
    assert not first.faults
    assert set(first.kept) == set(indices)
    cached = {index: read_only(value) for index, value in first.kept.items()}
    form = decoded_form(recipe)
    assert all(map(form.may_be, cached.values())), "it is known for what it is"

    def same(**options: Any) -> None:
        work = order(SOURCE, indices, **options)
        out = run(program, work, layout)
        assert not work.faults
        for got, want in zip(out, expected, strict=True):
            np.testing.assert_array_equal(got, want)

    same()
    same(cached=cached)
    same(cached={i: v for i, v in cached.items() if i % 3}, keep=True)
    same(keep=True, reserve=reserve_none)
    same(keep=[i % 2 == 0 for i in indices])
    again = order(SOURCE, indices, keep=True)
    run(program, again, layout)
    for index, value in again.kept.items():
        np.testing.assert_array_equal(value, cached[index])


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("name", CHAINS)
def test_samples_are_the_rows(name: str, caches: bool) -> None:
    recipe = Recipe(SOURCE, image.decode(), CHAINS[name])
    program = compile_recipe(recipe, caches_decoded=caches)
    samples = program.samples(order(SOURCE, [4, 0, 3]))
    layout = program.layout
    assert layout is not None
    out = run(program, order(SOURCE, [4, 0, 3]), layout)
    for row, (value, target) in enumerate(samples):
        got = out[0][row].transpose(2, 0, 1) if layout.fields[0].channels_last else out[0][row]
        if layout.fields[0].dtype == "bfloat16":
            got = (got.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(value, got)
        assert target == [40, 0, 30][row]
        assert out[1][row] == target


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(
        [
            name
            for name in CHAINS
            if compile_recipe(Recipe(SOURCE, image.decode(), CHAINS[name]), caches_decoded=False).layout
        ]
    ),
    caches=st.booleans(),
    indices=st.permutations(range(len(BLOBS))),
    cut=st.integers(0, len(BLOBS)),
    seed=st.integers(0, 2**63),
    epoch=st.integers(0, 1000),
)
def test_rows_do_not_depend_on_how_orders_are_cut(
    name: str, caches: bool, indices: list[int], cut: int, seed: int, epoch: int
) -> None:
    recipe = Recipe(SOURCE, image.decode(), CHAINS[name])
    together = rows(recipe, indices, caches=caches, seed=seed, epoch=epoch)
    apart = [
        rows(recipe, part, caches=caches, seed=seed, epoch=epoch)
        for part in (indices[:cut], indices[cut:])
        if part
    ]
    for at, block in enumerate(together):
        np.testing.assert_array_equal(block, np.concatenate([part[at] for part in apart]))


@pytest.mark.parametrize(
    "name", [n for n in CHAINS if not n.startswith(("validation", "all", "deterministic jitter"))]
)
def test_random_chains_change_with_epoch_and_seed(name: str) -> None:
    recipe = Recipe(SOURCE, image.decode(), CHAINS[name])
    program = compile_recipe(recipe, caches_decoded=False)
    layout = layout_of(program, [0])
    indices = list(range(len(SOURCE)))
    base = run(program, order(SOURCE, indices), layout)[0]
    for other in ({"epoch": 1}, {"seed": 4}):
        assert (run(program, order(SOURCE, indices, **other), layout)[0] != base).any()


def test_normalising_is_left_out_of_the_decoded_form() -> None:
    recipe = Recipe(SOURCE, image.decode(), CHAINS["validation"])
    work = order(SOURCE, [0, 1], keep=True)
    out = run(compile_recipe(recipe, caches_decoded=True), work)
    for row in (0, 1):
        assert work.kept[row].dtype == np.uint8
        assert work.kept[row].nbytes * 4 == out[0][row].nbytes


def test_a_deterministic_recipe_is_cached_as_its_finished_rows() -> None:
    recipe = Recipe(SOURCE, image.decode(), CHAINS["all declared"])
    program = compile_recipe(recipe, caches_decoded=True)
    layout = layout_of(program, [0])
    work = order(SOURCE, [0, 1], keep=True)
    out = run(program, work, layout)
    for row in (0, 1):
        np.testing.assert_array_equal(work.kept[row], out[0][row])


def test_finished_rows_come_from_the_cache_beside_targets_of_user_code() -> None:
    recipe = Recipe(
        SOURCE, image.decode(), CHAINS["validation uint8"], target_transform=lambda target: {"a": target / 2}
    )
    program = compile_recipe(recipe, caches_decoded=True)
    layout = layout_of(program, [0])
    first = order(SOURCE, [0, 1, 2], keep=True)
    expected = run(program, first, layout)
    cached = {index: read_only(value) for index, value in first.kept.items()}
    for some in (cached, {1: cached[1]}):
        for got, want in zip(
            run(program, order(SOURCE, [0, 1, 2], cached=some), layout), expected, strict=True
        ):
            np.testing.assert_array_equal(got, want)


def test_a_decoded_form_holds_the_leading_deterministic_steps() -> None:
    recipe = Recipe(SOURCE, image.decode(), CHAINS["resize first"])
    work = order(SOURCE, [0, 1], keep=True)
    run(compile_recipe(recipe, caches_decoded=True), work)
    assert work.kept[0].shape == (48, 64, 3)
    assert work.kept[1].shape == (113, 48, 3)


def test_decoded_images_are_written_straight_into_reserved_memory() -> None:
    recipe = Recipe(SOURCE, image.decode(), CHAINS["training"])
    given: list[np.ndarray] = []

    def reserve(arrays: Any) -> list[np.ndarray]:
        given.extend(np.empty(shape, dtype) for shape, dtype in arrays)
        return list(given)

    work = order(SOURCE, [0, 1, 3], keep=True, reserve=reserve)
    run(compile_recipe(recipe, caches_decoded=True), work)
    assert [work.kept[row] is memory for row, memory in enumerate(given)] == [True] * 3


def test_user_code_never_gets_the_cache_s_own_memory() -> None:
    recipe = Recipe(SOURCE, image.decode(), [noisy, image.resize((8, 8))])
    program = compile_recipe(recipe, caches_decoded=True)
    program.samples(order(SOURCE, [0]))
    work = order(SOURCE, [0, 1], keep=True)
    run(program, work)
    plain = compile_recipe(Recipe(SOURCE, image.decode()), caches_decoded=False).samples(
        order(SOURCE, [0, 1])
    )
    for row in (0, 1):
        np.testing.assert_array_equal(work.kept[row].transpose(2, 0, 1), plain[row][0])


def test_seconds_are_counted_by_form() -> None:
    recipe = Recipe(SOURCE, image.decode(), CHAINS["training"])
    program = compile_recipe(recipe, caches_decoded=True)
    from headrace.core.forms import Form

    first = order(SOURCE, [0, 1], keep=True)
    run(program, first)
    assert first.seconds[Form.DECODED] > 0
    assert first.seconds[Form.AUGMENTED] > 0
    hits = order(SOURCE, [0, 1], cached=first.kept)
    run(program, hits)
    assert hits.seconds[Form.DECODED] < hits.seconds[Form.AUGMENTED]
    fused = order(SOURCE, [0, 1])
    run(program, fused)
    assert fused.seconds[Form.DECODED] > 0


def kept(value: Any) -> Any:
    """As it comes back from a tier."""
    pieces = extents.dump(pack(value))
    assert pieces is not None
    return extents.load(memoryview(b"".join(pieces)))


USERS: list[Any] = [
    *(b"bytes", 5, None, "text", 2.5, np.float32(3), np.zeros((2, 3)), {"a": [1, (np.zeros(3), b"")]}),
    *(torch.zeros(3), torch.zeros(2, dtype=torch.bfloat16), {"of": torch.ones(2, dtype=torch.bool)}),
    *(Image.new(mode, (4, 3)) for mode in ("RGB", "RGBA", "L", "I", "F")),
]


@pytest.mark.parametrize(
    "value", USERS, ids=lambda one: one.mode if isinstance(one, Image.Image) else repr(one)
)
def test_of_user_code_everything_may_be_that_can_be_kept(value: Any) -> None:
    form = decoded_form(Recipe(SOURCE, deterministic(darker), [noisy]))
    assert form.may_be(kept(value))


@pytest.mark.parametrize(
    "value",
    [
        {"torch": 5},
        {"PIL:RGB": np.zeros((4, 4), np.uint8)},
        {"PIL:P": np.zeros((4, 4), np.uint8)},
        {"bytes": np.zeros(3)},
        [{"numpy": np.zeros(3)}],
        {"torch:bfloat16": np.zeros(3)},
    ],
    ids=repr,
)
def test_what_nobody_can_have_kept_is_none(value: Any) -> None:
    assert not decoded_form(Recipe(SOURCE, deterministic(darker), [noisy])).may_be(value)


@pytest.mark.parametrize(
    ("chain", "value"),
    [
        ([], np.zeros(5)),
        ([], np.zeros((4, 4, 1), np.uint8)),
        ([], np.zeros((4, 4, 3), np.int8)),
        ([image.resize((16, 16)), noisy], np.zeros((16, 17, 3), np.uint8)),
        ([image.resize((16, 16))], np.zeros((3, 16, 16), np.uint8)),
    ],
)
def test_an_image_of_another_kind_is_none(chain: list[Any], value: Any) -> None:
    assert not decoded_form(Recipe(SOURCE, image.decode(), chain)).may_be(value)


def test_synthetic_samples_are_known_by_their_shape() -> None:
    form = decoded_form(Recipe(synthetic.source(5, shape=(2, 3)), synthetic.decode()))
    assert form.may_be(np.zeros((2, 3), np.uint8))
    assert not any(map(form.may_be, (np.zeros((3, 2), np.uint8), np.zeros((2, 3)), {"torch": np.zeros(2)})))
