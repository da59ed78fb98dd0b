"""The loader's modules go through each other's public names: what is private to a class stays in its module."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace.loader

MODULES = sorted(Path(headrace.loader.__file__).parent.glob("*.py"))
ALLOWED = {
    "_fields": "public in named tuples",
    "_replace": "public in named tuples",
    "_worker_info": "torch has no other way to make a process a worker",
}
READERS = ("getattr", "setattr", "hasattr")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in ALLOWED


def of_this_module(tree: ast.Module) -> set[str]:
    """Names of objects whose classes the module defines, as far as it says so."""
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)} | {"cls"}
    found = {"self", "cls", "super()"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if ast.unparse(node.value.func) in classes:
                found |= {ast.unparse(target) for target in node.targets}
        elif isinstance(node, ast.arg) and node.annotation and ast.unparse(node.annotation) in classes:
            found.add(node.arg)
    return found


def taken(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that a node takes from an object or a module of ours, and whose they are."""
    if isinstance(node, ast.Attribute):
        yield ast.unparse(node.value), node.attr
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headrace"):
        for name in node.names:
            yield str(node.module), name.name
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in READERS and len(node.args) > 1:
        owner, name = node.args[:2]
        if isinstance(name, ast.Constant):
            yield ast.unparse(owner), str(name.value)


def uses(code: str) -> list[str]:
    """Private names that a module takes from elsewhere."""
    tree = ast.parse(code)
    own = of_this_module(tree)
    found = (pair for node in ast.walk(tree) for pair in taken(node))
    return [f"{owner}: {name}" for owner, name in found if is_private(name) and owner not in own]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_no_module_uses_private_names_of_another(path: Path) -> None:
    assert uses(path.read_text()) == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("loader._session.host", 1),
        ("self._loader._session", 1),
        ("getattr(loader, '_session', None)", 1),
        ("from headrace.loader.state import _plain", 1),
        ("class Iterator:\n    def __init__(self, loader):\n        self._session = loader._session", 1),
        ("self._session, cls._made, super()._plain(), pair._replace(a=1), loader.__len__()", 0),
        ("class Times:\n    def __init__(self, other: Times):\n        self._times = other._times", 0),
        ("class Times:\n    def copy(self):\n        other = Times()\n        other._times = self._times", 0),
    ],
)
def test_private_names_are_found(code: str, count: int) -> None:
    assert len(uses(code)) == count
