"""Share keys: equal for equal code and data, and by no accident for any other."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import importlib
import operator
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import files, image, synthetic
from headrace.core.errors import OptionError
from headrace.core.forms import CACHEABLE, Form
from headrace.core.layout import Field, RowLayout
from headrace.core.tree import LEAF, Spec
from headrace.recipes import Recipe, deterministic, origins
from headrace.recipes.fingerprint import digest
from tests.recipes.helpers import MemorySource

SOURCE = MemorySource([b"a", b"b"], np.array([1, 2]))
OTHER = MemorySource([b"c"], [5.5])


def keys(*augment: Any, decode: Any = None, source: Any = SOURCE, **options: Any) -> list[str]:
    recipe = Recipe(source, decode or image.decode(), list(augment), **options)
    return [recipe.share_key(form) for form in CACHEABLE]


def test_the_source_and_its_targets_are_no_part_of_what_is_shared() -> None:
    crop = image.random_crop(4)
    base = keys(image.resize(8), crop)
    assert len(set(base)) == 3
    assert keys(image.resize(8), crop, source=OTHER) == base
    assert keys(image.resize(8), crop, source=MemorySource([b"a"])) == base
    assert keys(image.resize(8), crop, target_transform=lambda target: target + 1) == base
    assert keys(image.resize(8), crop, collate=list) == base


def test_jobs_share_as_far_as_their_steps_agree() -> None:
    base = keys(image.resize(8), image.random_crop(4))

    def shared(*augment: Any, **options: Any) -> list[bool]:
        return [a == b for a, b in zip(base, keys(*augment, **options), strict=True)]

    assert shared(image.resize(8), image.random_crop(5)) == [True, True, False]
    assert shared(image.resize(9), image.random_crop(4)) == [True, False, False]
    assert shared(image.random_crop(4), image.resize(8)) == [True, False, False]
    assert shared(image.resize(8), image.random_crop(4), decode=image.decode("L")) == [True, False, False]
    paths = files(["/data/a"], encoded=False)
    assert shared(image.resize(8), image.random_crop(4), source=paths) == [False] * 3


def test_a_declared_step_belongs_to_another_form() -> None:
    assert keys(_identity)[1] != keys(deterministic(_identity))[1]


def test_synthetic_samples_share_only_what_has_their_shape() -> None:
    def of(shape: Any, **options: Any) -> list[str]:
        source = synthetic.source(4, shape=shape, bytes_per_sample=100)
        return keys(source=source, decode=synthetic.decode(**options))

    assert of((3, 4)) == of((3, 4))
    assert [a == b for a, b in zip(of((3, 4)), of((4, 3)), strict=True)] == [True, False, False]


def test_rows_count_by_their_body() -> None:
    recipe = Recipe(SOURCE, image.decode(), [_identity])
    plain = Recipe(MemorySource([b"a"]), image.decode(), [_identity])

    def layout(value: Field, target: Field | None) -> RowLayout:
        if target is None:
            return RowLayout((value,), LEAF)
        return RowLayout((value, target), Spec("tuple", (), (LEAF, LEAF)))

    def key(value: Field, target: Field | None = None, form: Form = Form.AUGMENTED) -> str:
        return (plain if target is None else recipe).share_key(form, layout(value, target))

    number = Field((3,), "int64")
    assert (
        key(number) == key(Field((3,), "int64")) == key(number, number) == key(number, Field((), "float32"))
    )
    others = [Field((3,), "float64"), Field((3, 1), "int64"), Field((3,), "int64", channels_last=True)]
    assert len({key(number), *map(key, others)}) == 4
    assert (
        key(number, form=Form.DECODED) == key(others[0], form=Form.DECODED) == plain.share_key(Form.DECODED)
    )


def test_there_is_no_key_for_no_form() -> None:
    with pytest.raises(OptionError, match="to share"):
        Recipe(SOURCE).share_key(Form.NONE)


# -- what must not be equal by accident --------------------------------------------------------------------


def _identity(value: Any) -> Any:
    return value


def _compiled(text: str, **space: Any) -> Any:
    space["__name__"] = "user"
    exec(text, space)
    return space["step"]


class Both(list):  # type: ignore[type-arg]
    """A container with code of its own."""

    def __call__(self, value: Any) -> Any:
        return [step(value) for step in self]


class Either(list):  # type: ignore[type-arg]
    """Another, which looks the same."""

    def __call__(self, value: Any) -> Any:
        return self[0](value)


Either.__qualname__, Either.__name__ = Both.__qualname__, Both.__name__


@dataclasses.dataclass
class Tabled:
    """A dataclass that holds more than its fields."""

    size: int

    def fill(self, number: int) -> Tabled:
        self.table = number
        return self

    def __call__(self, value: Any) -> Any:
        return value + self.table


class Mode(enum.Enum):
    UP = 1
    DOWN = 2


def _class(**members: Any) -> Any:
    def call(self: Any, value: Any) -> Any:
        return self.tool(value)

    return type("Made", (), {"__call__": call, "__module__": __name__, "__qualname__": "Made", **members})()


def _cached(number: int) -> Any:
    helper = f"import functools\n@functools.lru_cache\ndef helper(v): return v + {number}"
    return _compiled(f"{helper}\ndef step(v): return helper(v)")


def _with_attribute(number: int) -> Any:
    step = _compiled("def step(v): return v * step.number")
    step.number = number
    return step


def _rebuilt(function: Callable[..., Any]) -> Any:
    class Rebuilt:
        def __reduce__(self) -> Any:
            return function, (1,)

        def __call__(self, value: Any) -> Any:
            return value

    return Rebuilt()


def _masked(mask: bool) -> Any:
    return functools.partial(operator.add, np.ma.masked_array([1, 2], [mask, False]))


def _generator(text: str) -> Any:
    kind = _compiled(f"import random\nclass step(random.Random):\n    def random(self): return {text}")
    return functools.partial(_identity, kind(1))


def _catching(catches: bool) -> Any:
    """Two functions of the same instructions; which of them are guarded stands in a table beside them."""
    step = _compiled("def step(v):\n try: return 1 / v\n except ZeroDivisionError: return 0")
    code = step.__code__ if catches else step.__code__.replace(co_exceptiontable=b"")
    return types.FunctionType(code, step.__globals__)


ACCIDENTS: dict[str, tuple[Any, Any]] = {
    "constants of one value": (_compiled("step = lambda v: v + 1"), _compiled("step = lambda v: v + 1.0")),
    "minus zero": (_compiled("step = lambda v: v * 0.0"), _compiled("step = lambda v: v * -0.0")),
    "handlers": (_catching(True), _catching(False)),
    "keyword-only": (_compiled("def step(v, w=1): return v"), _compiled("def step(v, *, w=1): return v")),
    "inner functions": (
        _compiled("def step(v):\n def f(w): return w + 1\n return f(v)"),
        _compiled("def step(v):\n def f(w): return w + 2\n return f(v)"),
    ),
    "functions in a cache": (_cached(1), _cached(2)),
    "attributes of functions": (_with_attribute(1), _with_attribute(2)),
    "containers with code": (Both([_identity]), Either([_identity])),
    "more than fields": (Tabled(1).fill(1), Tabled(1).fill(2)),
    "members of enums": (functools.partial(_identity, Mode.UP), functools.partial(_identity, Mode.DOWN)),
    "a member that is a partial": (
        _class(tool=functools.partial(max, 1)),
        _class(tool=functools.partial(max, 2)),
    ),
    "a member that is a set": (_class(tool=frozenset({1})), _class(tool=frozenset({2}))),
    "a member that is an object": (_class(tool=Tabled(1).fill(1)), _class(tool=Tabled(1).fill(2))),
    "a member that is cached": (_class(tool=_cached(1)), _class(tool=_cached(2))),
    "static or not": (_class(tool=staticmethod(_identity)), _class(tool=classmethod(_identity))),
    "methods of built-in classes": (str.upper, bytes.upper),
    "methods of empty things": ([].__contains__, {}.__contains__),
    "what makes it again": (_rebuilt(int), _rebuilt(float)),
    "masks": (_masked(True), _masked(False)),
    "fields of records": (
        functools.partial(_identity, np.zeros(2, [("x", "i4"), ("y", "i4")])),
        functools.partial(_identity, np.zeros(2, [("y", "i4"), ("x", "i4")])),
    ),
    "default factories": (
        functools.partial(_identity, collections.defaultdict(int)),
        functools.partial(_identity, collections.defaultdict(list)),
    ),
    "code of generators": (_generator("0.5"), _generator("0.6")),
    "installed functions": (np.flipud, np.fliplr),
    "bound arguments": (operator.itemgetter(1), operator.itemgetter(2)),
}


@pytest.mark.parametrize("name", ACCIDENTS)
def test_different_steps_have_different_keys(name: str) -> None:
    one, other = ACCIDENTS[name]
    assert keys(one)[2] != keys(other)[2]
    assert keys(deterministic(one))[1] != keys(deterministic(other))[1]
    assert keys(one) == keys(one)


@pytest.mark.parametrize(
    "make",
    [
        lambda: _compiled("def step(v): return v + 1"),
        lambda: _cached(3),
        lambda: _with_attribute(3),
        lambda: Tabled(1).fill(2),
        lambda: Both([_identity, np.sqrt]),
        lambda: _class(tool=functools.partial(max, 1)),
        lambda: functools.partial(_identity, collections.defaultdict(int), Mode.UP, {"a", "b"}),
        lambda: functools.partial(_identity, threading.Lock(), sys.stdout),
    ],
)
def test_equal_steps_have_equal_keys(make: Callable[[], Any]) -> None:
    assert keys(make()) == keys(make())


@pytest.mark.parametrize(
    "what",
    [
        np.frompyfunc(lambda v: v + 1, 1, 1),
        functools.partial(_identity, memoryview(b"abc")),
        functools.partial(_identity, (number for number in range(3))),
    ],
)
def test_what_cannot_be_told_apart_is_refused(what: Any) -> None:
    with pytest.raises(OptionError, match="__headrace_fingerprint__"):
        keys(what)


def test_who_speaks_for_its_instances_does_so_for_its_own_class() -> None:
    def make(number: int) -> Any:
        text = (
            "class Step:\n"
            "    def __headrace_fingerprint__(self): return 'mine'\n"
            f"    def __call__(self, v): return v + {number}\n"
            "step = Step()"
        )
        return _compiled(text)

    assert keys(make(1)) == keys(make(1))
    assert keys(make(1))[2] != keys(make(2))[2]


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes modules of the user's, and imports them anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # Of two texts of one size and second, Python would run the first one's bytecode again.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(**texts: str) -> None:
        for name, text in texts.items():
            path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        for name in [n for n in sys.modules if n.startswith("user_")]:
            monkeypatch.delitem(sys.modules, name)
        importlib.invalidate_caches()

    return write


@pytest.mark.parametrize(
    "step",
    [
        "import user_tools\ndef step(v): return user_tools.scale(v)",
        "import user_tools as t\ndef step(v): return getattr(t, 'scale')(v)",
        "from user_tools import scale\ndef step(v): return scale(v)",
        "def step(v):\n import user_tools\n return user_tools.scale(v)",
        "def step(v):\n from user_tools import scale\n return scale(v)",
        "import user_pkg.deep\ndef step(v): return user_pkg.deep.scale(v)",
        "def make():\n import user_tools\n return lambda v: user_tools.scale(v)\nstep = make()",
    ],
)
def test_modules_of_the_users_count_by_what_is_in_them(modules: Any, step: str) -> None:
    def key(number: int) -> str:
        text = f"def scale(v): return v * {number}"
        modules(user_tools=text, user_pkg__deep=text)
        importlib.import_module("user_pkg.deep")
        return keys(_compiled(step))[2]

    assert key(1) == key(1)
    assert key(1) != key(2)


@pytest.mark.parametrize("place", ["site-packages", "anywhere"])
def test_packages_count_by_their_version_wherever_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Clusters and containers have folders of packages on the path that are not this Python's own."""
    folder = tmp_path / place
    (folder / "elsewhere").mkdir(parents=True)
    package = folder / "elsewhere" / "__init__.py"
    if place == "anywhere":
        (folder / "elsewhere-1.0.dist-info").mkdir()
        (folder / "elsewhere-1.0.dist-info" / "RECORD").write_text("elsewhere/__init__.py,,\n")
    (folder / "beside.py").write_text(
        "import elsewhere\ndef step(value):\n    return elsewhere.step(value)\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def key(version: str, body: str) -> str:
        package.write_text(f"__version__ = {version!r}\nimport threading\nlock = threading.Lock()\n{body}")
        for name in ("elsewhere", "beside"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        origins.installed.cache_clear()
        origins._installed_in.cache_clear()
        # (its lock has no state to take a fingerprint of: as the user's own code it would be refused)
        return keys(importlib.import_module("elsewhere").step)[2]

    body = "def step(value):\n    with lock:\n        return value\n"
    assert key("1.0", body) == key("1.0", body)
    assert key("1.0", body) != key("1.1", body)
    assert origins.installed("elsewhere") == "elsewhere 1.1"
    if place == "anywhere":
        importlib.import_module("beside")
        assert origins.installed("beside") is None, "no installer has put it there"
    origins.installed.cache_clear()
    origins._installed_in.cache_clear()


def test_a_class_may_have_a_module_for_its_instances() -> None:
    class Odd:
        __module__ = property(lambda self: "somewhere")  # type: ignore[assignment]

        def __call__(self, value: Any) -> Any:
            return value

    assert keys(Odd()) == keys(Odd())


def test_values_in_modules_of_the_users_count_as_they_are_now(modules: Any) -> None:
    modules(user_tools="LIMIT = 1", user_pkg__deep="")
    step = _compiled("import user_tools\ndef step(v): return v + user_tools.LIMIT")
    held = functools.partial(_identity, sys.modules["user_tools"])
    before, held_before = keys(step)[2], keys(held)[2]
    assert keys(step)[2] == before
    sys.modules["user_tools"].LIMIT = 2  # type: ignore[attr-defined]
    assert keys(step)[2] != before
    assert keys(held)[2] != held_before


def test_a_module_that_was_made_while_running_counts_by_what_is_used_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def key(number: int) -> str:
        made = types.ModuleType("user_made")
        monkeypatch.setitem(sys.modules, "user_made", made)
        exec(f"def scale(v): return v + {number}", vars(made))
        return keys(_compiled("import user_made\ndef step(v): return user_made.scale(v)"))[2]

    assert key(1) == key(1)
    assert key(1) != key(2)


def test_steps_derived_from_those_of_headrace_count_by_their_code() -> None:
    def make(number: int) -> Any:
        base = type(image.grayscale())
        text = (
            "import dataclasses\n"
            "@dataclasses.dataclass(frozen=True)\n"
            f"class {base.__name__}(base):\n"
            f"    def paint(self, *rest): return {number}\n"
            f"step = {base.__name__}(**vars(gray))"
        )
        return _compiled(text, base=base, gray=image.grayscale())

    assert keys(make(1))[2] == keys(make(1))[2]
    assert len({keys(make(1))[2], keys(make(2))[2], keys(image.grayscale())[2]}) == 3


def test_tensors_count_by_their_numbers() -> None:
    torch = pytest.importorskip("torch")
    ones = [torch.ones(3), torch.ones(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.bfloat16)]
    ones.append(torch.ones(3, dtype=torch.int16))
    assert len({digest(value) for value in ones}) == len(ones)
    assert digest(torch.ones(3)) == digest(ones[0])
