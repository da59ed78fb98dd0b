"""Recipes as definitions: what is refused, and which definitions are equal."""

from __future__ import annotations

import functools
import pickle
import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import image, synthetic
from headrace.core.errors import OptionError
from headrace.core.forms import Form
from headrace.recipes import Recipe, deterministic
from headrace.recipes.fingerprint import digest
from tests.recipes.helpers import MemorySource
from tests.strategies import words

SOURCE = MemorySource([b"a", b"b"], np.array([1, 2]))
FORMS = (Form.ENCODED, Form.DECODED, Form.AUGMENTED)


def prints(*augment: Any, decode: Any = None, source: Any = SOURCE, **options: Any) -> list[str]:
    recipe = Recipe(source, decode or image.decode(), list(augment), **options)
    return [recipe.fingerprint(form) for form in FORMS]


def plus(value: Any) -> Any:
    return value + 1


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, value: Any) -> Any:
        return value * self.factor


def test_equal_definitions_have_equal_fingerprints() -> None:
    make = lambda: prints(image.resize(8), image.random_crop(4), Scaled(2.0), plus)  # noqa: E731
    assert make() == make()


def test_a_form_depends_on_all_that_leads_to_it_and_on_nothing_else() -> None:
    base = prints(image.resize(8), image.random_crop(4))

    def shared(*augment: Any, **options: Any) -> list[bool]:
        return [a == b for a, b in zip(base, prints(*augment, **options), strict=True)]

    assert shared(image.resize(8), image.random_crop(5)) == [True, True, False]
    assert shared(image.resize(8)) == [True, True, False]
    assert shared(image.resize(9), image.random_crop(4)) == [True, False, False]
    assert shared(image.random_crop(4), image.resize(8)) == [True, False, False]
    assert shared(image.resize(8), image.random_crop(4), decode=image.decode("L")) == [True, False, False]
    others = MemorySource([b"a", b"c"], SOURCE.targets)
    assert shared(image.resize(8), image.random_crop(4), source=others) == [False] * 3
    relabelled = MemorySource(SOURCE.blobs, np.array([2, 1]))
    assert shared(image.resize(8), image.random_crop(4), source=relabelled) == [True, True, False]
    assert shared(image.resize(8), image.random_crop(4), target_transform=plus) == [True, True, False]
    assert shared(image.resize(8), image.random_crop(4), collate=list) == [True, True, True]


def test_every_option_of_every_step_counts() -> None:
    steps = [
        image.resize(8),
        image.resize((8, 8)),
        image.resize(8, interpolation="area"),
        image.resize(8, max_size=20),
        image.center_crop(8),
        image.random_resized_crop(8),
        image.random_resized_crop(8, scale=(0.1, 1.0)),
        image.random_resized_crop(8, ratio=(1.0, 1.0)),
        image.random_crop(8),
        image.random_crop(8, padding=1),
        image.random_crop(8, padding=1, fill=1),
        image.random_crop(8, padding=1, padding_mode="edge"),
        image.random_crop(8, pad_if_needed=True),
        image.horizontal_flip(),
        image.horizontal_flip(0.4),
        image.vertical_flip(),
        image.color_jitter(0.1),
        image.color_jitter(0, 0.1),
        image.grayscale(),
        image.gaussian_blur(3),
        image.gaussian_blur(5),
        image.rotation(5),
        image.rotation(5, expand=True),
        image.random_erasing(),
        image.random_erasing(value="random"),
        image.normalise(0.5, 0.5),
        image.normalise(0.5, 0.5, dtype="float16"),
        image.normalise(0.5, 0.5, scale=1.0),
        image.to_float(),
        image.layout(),
        image.layout("NHWC"),
        image.layout(contiguous=True),
    ]
    assert len({prints(step)[2] for step in steps}) == len(steps)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Scaled(1.0), Scaled(2.0)),
        (plus, Scaled(1.0)),
        (lambda v: v + 1, lambda v: v + 2),
        (lambda v: v + 1, lambda v: v - 1),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (Scaled(1.0).__call__, Scaled(2.0).__call__),
        (np.sqrt, np.exp),
        (str.upper, str.lower),
    ],
)
def test_callables_differ_by_code_and_state(one: Any, other: Any) -> None:
    assert prints(one)[2] != prints(other)[2]
    assert prints(one)[:2] == prints(other)[:2]
    assert prints(deterministic(one))[1] != prints(deterministic(other))[1]


def test_closures_defaults_and_globals_count() -> None:
    def make(number: int) -> Any:
        return lambda value: value + number

    def default(value: Any, number: int = 1) -> Any:
        return value + number

    first = digest(default)
    default.__defaults__ = (2,)
    assert digest(default) != first
    assert digest(make(1)) == digest(make(1)) != digest(make(2))
    space: dict[str, Any] = {"__name__": "user"}
    exec("LIMIT = 3\ndef helper(v): return v * LIMIT\ndef f(v): return helper(v)", space)
    before = digest(space["f"])
    space["LIMIT"] = 4
    assert digest(space["f"]) != before


def test_recursive_structures_and_generators() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert digest(loop) == digest(loop)
    stepper = Scaled(1.0)
    stepper.rng = random.Random(1)  # type: ignore[attr-defined]
    other = Scaled(1.0)
    other.rng = random.Random(2)  # type: ignore[attr-defined]
    assert digest(stepper) == digest(other)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), words(), st.binary()),
        lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.dictionaries(words(), inner)),
        max_leaves=12,
    )
)
def test_plain_data_survives_a_copy(value: Any) -> None:
    assert digest(pickle.loads(pickle.dumps(value))) == digest(value)
    assert digest([value]) != digest([[value]])


@given(
    st.lists(st.one_of(st.integers(), words()), max_size=4),
    st.lists(st.one_of(st.integers(), words()), max_size=4),
)
def test_digests_tell_values_apart(one: list[Any], other: list[Any]) -> None:
    assert (digest(one) == digest(other)) == (one == other)


SCRIPT = """
    import sys
    import numpy as np
    from headrace import image, files
    from headrace.core.forms import Form
    from headrace.recipes import Recipe, deterministic

    TABLE = {"b", "a", "c", "d", "e"}
    WEIGHTS = np.arange(5.0)

    def helper(value):
        return value if value in TABLE else sum(WEIGHTS)

    class Step:
        names = {"x": 1}
        def __init__(self, options): self.options = options
        def __call__(self, value): return helper(value) + [v for v in self.options]

    def local(number):
        def inner(value): return value + number
        return inner

    recipe = Recipe(
        files(["/data/a", "/data/b"], [0, 1]),
        decode=lambda data: helper(data),
        augment=[deterministic(local(3)), Step({"one", "two", "three"}), image.random_resized_crop(8)],
    )
    print(*(recipe.fingerprint(form) for form in (Form.ENCODED, Form.DECODED, Form.AUGMENTED)))
"""


def test_processes_agree(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    found = set()
    for hash_seed in ("0", "1", "2"):
        result = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            check=True,
            env={
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": ":".join(filter(None, sys.path)),
                "PATH": "/usr/bin",
            },
        )
        found.add(result.stdout)
    assert len(found) == 1
    assert len(set(found.pop().split())) == 3


def test_recipes_travel_to_workers() -> None:
    recipe = Recipe(SOURCE, image.decode(), [image.random_resized_crop(4), lambda value: value + 1])
    there = pickle.loads(cloudpickle.dumps(recipe))
    assert [there.fingerprint(form) for form in FORMS] == [recipe.fingerprint(form) for form in FORMS]
    assert there.steps[0] == recipe.steps[0]


class Sealed:
    __slots__ = ()

    def __call__(self, value: Any) -> Any:
        return value

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("no state")


def test_what_cannot_be_fingerprinted_says_so() -> None:
    recipe = Recipe(SOURCE, image.decode(), [Sealed()])
    with pytest.raises(OptionError, match="__headrace_fingerprint__"):
        recipe.fingerprint(Form.AUGMENTED)

    class Named(Sealed):
        def __headrace_fingerprint__(self) -> str:
            return "mine"

    assert Recipe(SOURCE, image.decode(), [Named()]).fingerprint(Form.AUGMENTED)


def test_objects_with_tools_in_them_are_fingerprinted_by_the_rest() -> None:
    def make(factor: float) -> Any:
        step = Scaled(factor)
        step.lock = threading.Lock()  # type: ignore[attr-defined]
        step.kind = int | str  # type: ignore[attr-defined]
        return step

    assert digest(make(1.0)) == digest(make(1.0)) != digest(make(2.0))


def test_lead_counts_the_leading_deterministic_steps() -> None:
    def lead(*augment: Any) -> int:
        return Recipe(SOURCE, image.decode(), augment).lead

    assert lead() == 0
    assert lead(image.resize(8), image.center_crop(4)) == 2
    assert lead(image.resize(8), image.center_crop(4), image.to_float()) == 2
    assert lead(image.resize(8), image.horizontal_flip(), image.to_float()) == 1
    assert lead(image.horizontal_flip(1.0), image.random_crop(4)) == 1
    assert lead(plus, image.resize(8)) == 0
    assert lead(deterministic(plus), image.resize(8), plus) == 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Recipe([1, 2, 3]), "no source"),
        (lambda: Recipe(SOURCE, image.decode(), image.resize(8)), r"augment=\[...\]"),
        (lambda: Recipe(SOURCE, image.decode(), [3]), r"augment\[0\].*neither"),
        (lambda: Recipe(SOURCE, image.decode(), [Scaled]), r"write Scaled\(...\)"),
        (lambda: Recipe(SOURCE, image.decode, []), "with parentheses"),
        (lambda: Recipe(SOURCE, image.decode(), [image.horizontal_flip]), "with parentheses"),
        (lambda: Recipe(SOURCE, image.resize(8)), "step of augment="),
        (lambda: Recipe(SOURCE, image.decode(), [image.decode()]), "belongs into decode="),
        (lambda: Recipe(SOURCE, None, [image.resize(8)]), r"decode=image.decode\(\)"),
        (lambda: Recipe(SOURCE, image.decode(), [image.to_float(), image.resize(8)]), "before normalise"),
        (lambda: Recipe(SOURCE, image.decode(), [image.to_float(), image.to_float()]), "before normalise"),
        (lambda: Recipe(SOURCE, image.decode(), [image.layout(), image.grayscale()]), "before layout"),
        (lambda: Recipe(SOURCE, image.decode(), [image.to_float("bfloat16"), plus]), "cannot get bfloat16"),
        (lambda: Recipe(SOURCE, image.decode(), [image.to_float("bfloat16")], collate=list), "bfloat16"),
        (lambda: Recipe(SOURCE, image.decode(), collate=3), "not callable"),
        (lambda: Recipe(SOURCE, image.decode(), target_transform=3), "not callable"),
        (lambda: deterministic(image.resize(3)), "says itself"),
        (lambda: deterministic(3), "callable"),
        (lambda: Recipe(SOURCE, image.decode()).fingerprint(Form.NONE), "fingerprint"),
        (lambda: synthetic.decode(cost=-1), "negative"),
    ],
)
def test_what_cannot_work_is_refused_at_once(make: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make()


def test_recipes_are_frozen() -> None:
    recipe = Recipe(SOURCE, image.decode())
    with pytest.raises(AttributeError):
        recipe.decode = None  # type: ignore[misc]
