"""Any callable as decode or augment: what it gets, what may come out of it, and what randomness it sees."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from headrace import image
from headrace.core.forms import Form
from headrace.core.layout import Field
from headrace.core.tree import LEAF, Spec
from headrace.recipes import Recipe, compile_recipe, deterministic
from headrace.recipes.values import pack, unpack
from tests.recipes.helpers import MemorySource, jpeg, order, picture, png, read_only, run

SOURCE = MemorySource([png(picture(20, 30, seed)) for seed in range(6)], np.arange(6))
BYTES = MemorySource([bytes([n] * (n + 1)) for n in range(6)])


def finished(recipe: Recipe, indices: list[int], **options: Any) -> tuple[Any, list[np.ndarray], Any]:
    """Layout, rows and samples of a recipe that has to be tried to be known."""
    program = compile_recipe(recipe, caches_decoded=options.pop("caches", False))
    samples = program.samples(order(recipe.source, indices, **options))
    assert program.layout is not None
    work = order(recipe.source, indices, **options)
    out = run(program, work)
    assert not work.faults, work.faults
    return program.layout, out, samples


def test_a_decode_gets_bytes_and_may_return_nested_values() -> None:
    def decode(data: bytes) -> Any:
        assert type(data) is bytes
        return {"length": len(data), "mean": float(data[0]), "pixels": np.full((2, 2), data[0], np.float32)}

    source = MemorySource([memoryview(blob) for blob in BYTES.blobs[:0]] or BYTES.blobs, [5, 6, 7, 8, 9, 10])
    source.targets = np.array([5, 6, 7, 8, 9, 10])
    layout, out, samples = finished(Recipe(source, decode), [1, 3])
    assert layout.fields == (
        Field((), "int64"),
        Field((), "float64"),
        Field((2, 2), "float32"),
        Field((), "int64"),
    )
    assert layout.tree.kind == "tuple"
    assert layout.tree.children[0].keys == ("length", "mean", "pixels")
    assert out[0].tolist() == [2, 4]
    assert out[1].tolist() == [1.0, 3.0]
    assert out[3].tolist() == [6, 8]
    assert samples[1][0]["length"] == 4
    assert samples[1][1] == 8


def test_a_decode_gets_bytes_from_shared_memory_too() -> None:
    recipe = Recipe(BYTES, lambda data: len(data) if type(data) is bytes else -1)
    work = order(BYTES, [2])
    work.inputs = [memoryview(BYTES.blobs[2])]
    assert compile_recipe(recipe, caches_decoded=False).samples(work) == [3]


def test_without_decode_a_sample_is_its_bytes() -> None:
    program = compile_recipe(Recipe(BYTES), caches_decoded=False)
    assert program.samples(order(BYTES, [0, 2])) == [b"\0", b"\2\2\2"]
    assert program.layout is None
    parsed = Recipe(BYTES, None, [lambda data: np.frombuffer(data[:1], np.uint8)])
    assert finished(parsed, [4])[1][0].tolist() == [[4]]


class Pair(NamedTuple):
    first: Any
    second: Any


def test_named_tuples_keep_their_class() -> None:
    layout, out, samples = finished(Recipe(BYTES, lambda data: Pair(len(data), True)), [2])
    assert layout.tree == Spec("namedtuple", (), (LEAF, LEAF), Pair)
    assert [field.dtype for field in layout.fields] == ["int64", "bool"]
    assert samples == [Pair(3, True)]
    assert [block.tolist() for block in out] == [[3], [True]]


def test_tensors_and_pil_images_become_arrays() -> None:
    chw = Recipe(SOURCE, image.decode(), [lambda v: torch.from_numpy(v).permute(2, 0, 1).float()])
    layout, out, samples = finished(chw, [0, 1])
    assert layout.fields[0] == Field((3, 20, 30), "float32")
    np.testing.assert_array_equal(out[0][1], picture(20, 30, 1).transpose(2, 0, 1))
    assert type(samples[0][0]) is np.ndarray
    pil = Recipe(SOURCE, image.decode(), [lambda v: Image.fromarray(v).resize((5, 4))])
    layout, out, samples = finished(pil, [0])
    assert layout.fields[0] == Field((4, 5, 3), "uint8")
    half = Recipe(SOURCE, image.decode(), [lambda v: torch.tensor([1.5, -2.25], dtype=torch.bfloat16)])
    layout, out, samples = finished(half, [0])
    assert layout.fields[0] == Field((2,), "bfloat16")
    assert samples[0][0].tolist() == [1.5, -2.25]
    assert torch.from_numpy(out[0][0].view(np.int16)).view(torch.bfloat16).tolist() == [1.5, -2.25]


def test_a_collate_gets_samples_as_user_code_made_them() -> None:
    recipe = Recipe(SOURCE, image.decode(), [lambda v: torch.from_numpy(v)], collate=lambda samples: samples)
    (sample,) = compile_recipe(recipe, caches_decoded=False).samples(order(SOURCE, [0]))
    assert isinstance(sample[0], torch.Tensor)


def test_objects_that_are_no_arrays_leave_the_layout_unknown() -> None:
    program = compile_recipe(Recipe(BYTES, lambda data: {"text": "abc", "n": 1}), caches_decoded=False)
    assert program.samples(order(BYTES, [0])) == [{"text": "abc", "n": 1}]
    assert program.layout is None
    strings = MemorySource(SOURCE.blobs, ["a", "b", "c", "d", "e", "f"])
    program = compile_recipe(Recipe(strings, image.decode(), [image.center_crop(4)]), caches_decoded=False)
    assert program.samples(order(strings, [1]))[0][1] == "b"
    assert program.layout is None


def test_images_of_user_code_go_on_into_image_steps() -> None:
    want = picture(20, 30, 2)
    makers = [
        lambda data: want,
        lambda data: Image.fromarray(want),
        lambda data: torch.from_numpy(want).permute(2, 0, 1),
        lambda data: want[:, ::-1][:, ::-1],
    ]
    for make in makers:
        _, out, _ = finished(Recipe(BYTES, make, [image.center_crop((10, 12))]), [0, 1])
        np.testing.assert_array_equal(out[0][1], want[5:15, 9:21])
    work = order(BYTES, [0])
    recipe = Recipe(BYTES, lambda data: want.astype(np.float32), [image.center_crop(4)])
    compile_recipe(recipe, caches_decoded=False).run(work, [np.empty((1, 4, 4, 3), np.uint8)])
    assert "must return uint8 pixels" in work.faults[0].reason


def test_layout_decides_what_user_code_sees() -> None:
    seen: list[tuple[int, ...]] = []

    def look(value: Any) -> Any:
        seen.append(value.shape)
        return value

    for steps in (
        [],
        [image.layout("NHWC")],
        [image.layout("NCHW")],
        [image.layout("NCHW", contiguous=True)],
    ):
        finished(Recipe(SOURCE, image.decode(), [image.center_crop((4, 6)), *steps, look]), [0])
    assert seen[::2] == [(4, 6, 3), (4, 6, 3), (3, 4, 6), (3, 4, 6)]


class KeywordStep:
    """As albumentations' transforms are called."""

    def __call__(self, *, image: np.ndarray) -> dict[str, np.ndarray]:
        return {"image": image[:4, :5]}


def test_steps_that_take_an_image_by_keyword() -> None:
    class Theirs:
        def __call__(self, *args: Any, force_apply: bool = False, **data: Any) -> dict[str, Any]:
            return {"image": data["image"][:4, :5] + np.uint8(np.random.randint(9))}

    Theirs.__module__ = "albumentations.core.composition"
    for step in (KeywordStep(), Theirs(), lambda *, image: {"image": image[:4, :5]}):
        layout, _, _ = finished(Recipe(SOURCE, image.decode(), [step]), [0, 1])
        assert layout.fields[0] == Field((4, 5, 3), "uint8")


def test_albumentations_are_known_by_what_they_write_and_seeded_in_their_own_way() -> None:
    class Theirs:
        """Generators of its own, and notes whose order is that of a set."""

        def __init__(self, size: int, notes: list[str]) -> None:
            self.size, self.notes, self.rng = size, dict.fromkeys(notes), random.Random()

        def set_random_seed(self, seed: int) -> None:
            self.rng = random.Random(seed)

        def to_dict(self) -> dict[str, int]:
            return {"size": self.size}

        def __call__(self, *args: Any, **data: Any) -> dict[str, Any]:
            return {"image": np.full((2, 2), self.rng.random())}

    Theirs.__module__ = "albumentations.core.composition"

    def recipe(size: int, notes: list[str]) -> Recipe:
        return Recipe(SOURCE, image.decode(), [Theirs(size, notes)])

    assert recipe(1, ["a", "b"]).fingerprint(Form.AUGMENTED) == recipe(1, ["b", "a"]).fingerprint(
        Form.AUGMENTED
    )
    assert recipe(1, []).fingerprint(Form.AUGMENTED) != recipe(2, []).fingerprint(Form.AUGMENTED)

    def numbers(indices: list[int]) -> list[float]:
        program = compile_recipe(recipe(1, []), caches_decoded=False)
        return [value[0, 0] for value, _ in program.samples(order(SOURCE, indices))]

    first = numbers([0, 1, 2])
    assert len(set(first)) == 3
    assert numbers([2, 0]) == [first[2], first[0]]


def test_steps_of_torchvision_get_pil_images_and_keep_what_they_made() -> None:
    class Resize:
        def __call__(self, value: Any) -> Any:
            assert isinstance(value, Image.Image)
            return value.resize((6, 5))

    class ToTensor:
        def __call__(self, value: Any) -> Any:
            assert isinstance(value, Image.Image)
            return torch.from_numpy(np.asarray(value).transpose(2, 0, 1) / np.float32(255))

    class Normalize:
        def __call__(self, value: Any) -> Any:
            assert isinstance(value, torch.Tensor)
            return value - 0.5

    for step in (Resize, ToTensor, Normalize):
        step.__module__ = "torchvision.transforms.transforms"
    steps = [image.center_crop(10), Resize(), ToTensor(), Normalize()]
    layout, out, _ = finished(Recipe(SOURCE, image.decode(), steps), [0, 1])
    assert layout.fields[0] == Field((3, 5, 6), "float32")
    assert -0.5 <= out[0].min() < out[0].max() <= 0.5


def draws(value: Any) -> Any:
    return np.array([random.random(), np.random.rand(), torch.rand(()).item()])


def test_global_generators_are_seeded_by_seed_epoch_and_sample() -> None:
    recipe = Recipe(BYTES, lambda data: data, [draws])

    def numbers(indices: list[int], **options: Any) -> list[Any]:
        random.seed()
        np.random.seed()
        torch.seed()
        program = compile_recipe(recipe, caches_decoded=False)
        return [sample.tolist() for sample in program.samples(order(BYTES, indices, **options))]

    base = numbers([0, 1, 2])
    assert numbers([2, 0]) == [base[2], base[0]]
    flat = np.array(base)
    assert len(np.unique(flat)) == flat.size
    assert numbers([0], epoch=1) != base[:1]
    assert numbers([0], seed=9) != base[:1]


def test_a_decode_is_seeded_by_sample_whatever_else_is_in_the_order() -> None:
    recipe = Recipe(BYTES, draws, [lambda value: value])
    program = compile_recipe(recipe, caches_decoded=True)
    alone = program.samples(order(BYTES, [4]))[0]
    beside = order(BYTES, [1, 2, 4], cached={2: np.zeros(3)})
    beside.inputs[0] = None
    np.testing.assert_array_equal(program.samples(beside)[2], alone)


def test_two_random_steps_are_not_seeded_alike() -> None:
    recipe = Recipe(BYTES, lambda data: data, [lambda v: (draws(v),), lambda v: (v[0], draws(v))])
    first, second = compile_recipe(recipe, caches_decoded=False).samples(order(BYTES, [0]))[0]
    assert (first != second).all()


def test_faults_name_the_error_and_spare_the_others() -> None:
    def fragile(value: np.ndarray) -> np.ndarray:
        if value[0, 0, 0] == picture(20, 30, 2)[0, 0, 0]:
            raise KeyError("nothing here")
        return value

    for caches in (False, True):
        for steps in ([fragile, image.center_crop(8)], [image.center_crop((20, 30)), fragile]):
            recipe = Recipe(SOURCE, image.decode(), steps)
            program = compile_recipe(recipe, caches_decoded=caches)
            good = program.samples(order(SOURCE, [1]))[0][0]
            work = order(SOURCE, [2, 1], keep=caches)
            out = run(program, work)
            assert list(work.faults) == [0]
            assert "KeyError" in work.faults[0].reason
            assert "fragile" in work.faults[0].traceback
            got = out[0][1].transpose(2, 0, 1) if program.layout.fields[0].channels_last else out[0][1]
            np.testing.assert_array_equal(got, good)
            samples = program.samples(order(SOURCE, [2, 1]))
            assert samples[0] is None
            assert samples[1] is not None


def test_rows_that_do_not_fit_the_first_are_faults_that_say_what_to_do() -> None:
    shapes = MemorySource([png(picture(8, 8)), png(picture(8, 9)), jpeg(picture(8, 8))])
    program = compile_recipe(Recipe(shapes, image.decode()), caches_decoded=False)
    program.samples(order(shapes, [0]))
    assert program.layout is not None
    assert program.layout.fields[0] == Field((8, 8, 3), "uint8", channels_last=True)
    work = order(shapes, [0, 1, 2])
    run(program, work)
    assert list(work.faults) == [1]
    assert "8 x 9" in work.faults[1].reason
    assert "add a resize or crop" in work.faults[1].reason
    for value, words in (
        (np.zeros(3), "3"),
        (np.zeros(2, complex), "dtype"),
        ((1, 2), "2 parts"),
        ("x", "collate="),
    ):
        recipe = Recipe(BYTES, lambda data, value=value: value if data == b"\0" else np.zeros(2))
        program = compile_recipe(recipe, caches_decoded=False)
        program.samples(order(BYTES, [1]))
        work = order(BYTES, [1, 0])
        run(program, work)
        assert list(work.faults) == [1]
        assert words in work.faults[1].reason


def test_targets_of_every_kind() -> None:
    blobs = SOURCE.blobs
    crop = [image.center_crop(4)]

    def target_field(targets: Any, **options: Any) -> Any:
        source = MemorySource(blobs, targets)
        layout, out, samples = finished(Recipe(source, image.decode(), crop, **options), [1, 2])
        return layout.fields[1:], [block.tolist() for block in out[1:]], samples[0][1]

    assert target_field(np.arange(6)) == ((Field((), "int64"),), [[1, 2]], 1)
    assert target_field(np.arange(6.0)) == ((Field((), "float64"),), [[1.0, 2.0]], 1.0)
    assert target_field([{"a": n, "b": -n} for n in range(6)])[:2] == (
        (Field((), "int64"),) * 2,
        [[1, 2], [-1, -2]],
    )
    two = target_field(np.arange(12, dtype=np.float32).reshape(6, 2))
    assert two[:2] == ((Field((2,), "float32"),), [[[2, 3], [4, 5]]])
    assert target_field(np.arange(6), target_transform=lambda t: t * 0.5) == (
        (Field((), "float64"),),
        [[0.5, 1.0]],
        0.5,
    )


def test_a_failing_target_transform_is_a_fault() -> None:
    recipe = Recipe(SOURCE, image.decode(), [image.center_crop(4)], target_transform=lambda t: 1 // (t - 2))
    program = compile_recipe(recipe, caches_decoded=False)
    program.samples(order(SOURCE, [0]))
    work = order(SOURCE, [1, 2, 3])
    run(program, work)
    assert list(work.faults) == [1]
    assert "ZeroDivisionError" in work.faults[1].reason


def test_runs_user_code_is_declared() -> None:
    def declared(**options: Any) -> bool:
        return compile_recipe(Recipe(SOURCE, **options), caches_decoded=True).runs_user_code  # type: ignore[attr-defined]

    assert not declared(decode=image.decode(), augment=[image.center_crop(4), image.color_jitter(0.1)])
    assert declared(decode=image.decode(), augment=[image.center_crop(4), lambda v: v])
    assert declared(decode=image.decode(), augment=[deterministic(lambda v: v), image.center_crop(4)])
    assert declared(decode=lambda data: data)
    assert declared(decode=image.decode(), target_transform=lambda t: t)


VALUES = [
    np.arange(6).reshape(2, 3),
    {"a": np.float32(2.5), "b": [1, 2.5, None, True, "text", b"bytes"], "c": (np.zeros(2), ())},
    Image.fromarray(picture(4, 5)),
    Image.fromarray(picture(4, 5)[..., 0]),
    [torch.arange(3), torch.ones(2, 2, dtype=torch.bfloat16), torch.tensor(1.5)],
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_packed_and_unpacked(value: Any) -> None:
    again = unpack(read_only(pack(value)))

    def same(one: Any, other: Any) -> None:
        assert type(one) is type(other)
        if isinstance(one, dict):
            assert list(one) == list(other)
        if isinstance(one, dict | list | tuple):
            pairs = (
                zip(one.values(), other.values(), strict=True)
                if isinstance(one, dict)
                else zip(one, other, strict=True)
            )
            for a, b in pairs:
                same(a, b)
        elif isinstance(one, torch.Tensor):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
        elif isinstance(one, Image.Image):
            assert one.mode == other.mode
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
        else:
            np.testing.assert_array_equal(one, other)

    same(value, again)


def test_decoded_values_of_any_kind_come_back_from_the_cache() -> None:
    for value in VALUES:
        seen: list[Any] = []

        def look(v: Any, seen: list[Any] = seen) -> Any:
            seen.append(pack(v))
            return 0

        recipe = Recipe(BYTES, lambda data, value=value: value, [look])
        program = compile_recipe(recipe, caches_decoded=True)
        work = order(BYTES, [0], keep=True)
        program.samples(work)
        program.samples(order(BYTES, [0], cached={0: read_only(work.kept[0])}))
        assert repr(seen[0]) == repr(seen[1])


def test_values_that_cannot_be_cached_are_prepared_anew() -> None:
    recipe = Recipe(BYTES, lambda data: {1: {2, 3}}, [lambda v: len(v)])
    work = order(BYTES, [0, 1], keep=True)
    assert compile_recipe(recipe, caches_decoded=True).samples(work) == [1, 1]
    assert work.kept == {}


def test_bad_inputs_and_faults_of_the_engine_are_passed_over() -> None:
    from headrace.recipes import Fault

    truncated = jpeg(picture(40, 40))[:200]
    source = MemorySource(
        [jpeg(picture(40, 40, 1)), b"not an image", b"", truncated, jpeg(picture(30, 50, 2))]
    )
    for caches, steps in ((False, []), (True, []), (True, [image.resize((20, 20))])):
        recipe = Recipe(source, image.decode(), [*steps, image.random_resized_crop(16), image.to_float()])
        program = compile_recipe(recipe, caches_decoded=caches)
        work = order(source, [0, 1, 2, 3, 4, 0], keep=caches)
        work.faults[5] = Fault("it was not there")
        work.inputs[5] = None
        out = run(program, work)
        assert sorted(work.faults) == [1, 2, 3, 5]
        assert work.faults[5].reason == "it was not there"
        assert all(work.faults[row].reason for row in (1, 2, 3))
        assert set(work.kept) == ({0, 4} if caches else set())
        clean = run(program, order(source, [0, 4]))
        np.testing.assert_array_equal(out[0][[0, 4]], clean[0])
        samples = program.samples(order(source, [0, 1, 4]))
        assert [sample is None for sample in samples] == [False, True, False]


def test_images_that_are_too_large_are_refused() -> None:
    source = MemorySource([jpeg(picture(50, 60)), png(picture(50, 60)), jpeg(picture(40, 50))])
    recipe = Recipe(source, image.decode(max_pixels=2500), [image.random_resized_crop(8)])
    work = order(source, [0, 1, 2])
    run(compile_recipe(recipe, caches_decoded=False), work)
    assert sorted(work.faults) == [0, 1]
    assert all("max_pixels" in work.faults[row].reason for row in (0, 1))
