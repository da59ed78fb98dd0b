"""Nested samples: dicts, lists, tuples and named tuples of leaves.

``flatten`` takes a value apart into its leaves and a ``Spec``, which is plain data; ``unflatten`` puts leaves
back. Named tuples and other importable classes are kept by reference in the spec, so a spec stays inside one
job; the JSON-able subset is what caches and wires use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple


class Spec(NamedTuple):
    """The shape of a nested value: ``kind`` is leaf, dict, list, tuple or namedtuple."""

    kind: str
    keys: tuple[Any, ...] = ()
    children: tuple[Spec, ...] = ()
    cls: type | None = None


LEAF = Spec("leaf")


def flatten(value: Any) -> tuple[list[Any], Spec]:
    """The leaves of ``value``, depth first, and the spec that puts them back."""
    leaves: list[Any] = []
    return leaves, _walk(value, leaves)


def _walk(value: Any, leaves: list[Any]) -> Spec:
    if isinstance(value, Mapping):
        keys = tuple(value)
        return Spec("dict", keys, tuple(_walk(value[k], leaves) for k in keys))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return Spec("namedtuple", (), tuple(_walk(v, leaves) for v in value), type(value))
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return Spec(kind, (), tuple(_walk(v, leaves) for v in value))
    leaves.append(value)
    return LEAF


def unflatten(spec: Spec, leaves: Sequence[Any]) -> Any:
    """The nested value of ``spec`` with ``leaves`` at its leaves, of which there must be exactly enough."""
    if len(leaves) != count_leaves(spec):
        # Else running out would raise StopIteration, which whoever iterates takes for the end.
        raise ValueError(f"{len(leaves)} leaves do not fill a tree of {count_leaves(spec)}")
    return _build(spec, iter(leaves))


def count_leaves(spec: Spec) -> int:
    """How many leaves a value of this shape has."""
    return 1 if spec.kind == "leaf" else sum(count_leaves(child) for child in spec.children)


def _build(spec: Spec, leaves: Iterator[Any]) -> Any:
    if spec.kind == "leaf":
        return next(leaves)
    values = [_build(child, leaves) for child in spec.children]
    if spec.kind == "dict":
        return dict(zip(spec.keys, values, strict=True))
    if spec.kind == "namedtuple":
        assert spec.cls is not None
        return spec.cls(*values)
    return values if spec.kind == "list" else tuple(values)
