"""The folder that users are given of a dataset: its contents under their names, as links."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path

from headrace.datastore.books import every
from headrace.datastore.formats import bare_name
from headrace.datastore.keeper import Keeper
from headrace.datastore.tree import delete
from headrace.datastore.unpack import FILES, OBJECT


def view_exists(keeper: Keeper, books: sqlite3.Connection, name: str) -> bool:
    """Whether the folder is there."""
    row = books.execute("SELECT view FROM dataset WHERE name = ?", (name,)).fetchone()
    return row is not None and row["view"] is not None and keeper.layout.dataset(name).exists()


def make_view(keeper: Keeper, name: str) -> Path:
    """Make a dataset's folder. All its contents are here, and this process has a lease on it."""
    layout = keeper.layout
    with keeper.books.look() as books:
        rows = every(
            books,
            "SELECT object.name, object.key, content.kind FROM object JOIN content USING (key) WHERE dataset = ? "
            "ORDER BY number",
            name,
        )
    if len(rows) == 1 and rows[0]["kind"] == "tree":
        target = os.path.join("..", "content", rows[0]["key"], FILES)
        ident = "-"
    else:
        links = _links([(row["name"], row["key"], row["kind"]) for row in rows])
        ident = hashlib.sha256(repr(sorted(links.items())).encode("utf-8", "surrogateescape")).hexdigest()
        target = os.path.join("..", "views", ident)
    with keeper.books.change() as books:  # in the books first: what is not is deleted
        books.execute("UPDATE dataset SET view = ? WHERE name = ?", (ident, name))
    if ident != "-" and not layout.view(ident).exists():
        _build(layout.view(ident), layout.view(f".{ident}.{keeper.tokens.own}"), links)
    place = layout.dataset(name)
    with keeper.books.change():
        if not place.is_symlink() or os.readlink(place) != target:
            made = layout.dataset(f".{name}")
            made.unlink(missing_ok=True)
            made.symlink_to(target)
            os.replace(made, place)
    return place


def _links(objects: list[tuple[str, str, str]]) -> dict[str, tuple[str, str]]:
    """By path below the folder: which content, and what of it."""
    links: dict[str, tuple[str, str]] = {}
    for name, key, kind in objects:
        shown = bare_name(name) if key.endswith(".out") else name
        if shown in links:  # two archives with one name but for how they are packed
            shown = name
        links[shown] = (key, FILES if kind == "tree" else OBJECT)
    return links


def _build(place: Path, made: Path, links: dict[str, tuple[str, str]]) -> None:
    delete(made)
    made.mkdir()
    for name, (key, part) in links.items():
        at = made / name
        at.parent.mkdir(parents=True, exist_ok=True)
        up = os.path.join(*[".."] * (2 + name.count("/")))
        at.symlink_to(os.path.join(up, "content", key, part))
    try:
        os.rename(made, place)
    except OSError:  # another process was faster
        delete(made)
        if not place.exists():
            raise
