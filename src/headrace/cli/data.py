"""``headrace data``: datasets on this machine's disk."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import msgspec

from headrace.cli.show import show_time
from headrace.cli.tables import aligned_table, safe
from headrace.core.bar import Bar
from headrace.core.errors import OptionError
from headrace.core.sizes import show_size
from headrace.datastore import (
    Dataset,
    NoSuchDataset,
    Overview,
    Progress,
    Store,
    care,
    overview,
    repair,
    verify,
)

FAILED = 1
INTERRUPTED = 130
_EVERY = 0.1
"""Seconds between two pictures of the bar."""
_SHOWN = 20
"""Faults that are shown one by one."""


def describe(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Datasets on this machine's disk: fetched once, unpacked, shared by all jobs, evicted when room is needed. "
        'In a program, headrace.stored("NAME") is the folder. They lie in $HEADRACE_DATA, or in '
        "~/.local/share/headrace/data."
    )
    commands = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")
    add = _command(commands, "add", _add, "fetch a dataset, and give it a name", named=False)
    add.add_argument(
        "url",
        nargs="+",
        metavar="URL",
        help="a file, an archive, or a folder of files: https://, s3://, a path",
    )
    add.add_argument("--name", required=True, help="what it is called from now on")
    packed = add.add_mutually_exclusive_group()
    packed.add_argument("--unpack", action="store_true", default=None, help="unpack all archives")
    packed.add_argument(
        "--no-unpack", dest="unpack", action="store_false", default=None,
        help="keep archives as they are (by default a single one is unpacked, and several are kept)",
    )  # fmt: skip
    add.add_argument("--pin", action="store_true", help="never evict it")
    add.add_argument("--quota", metavar="SIZE", help="what the store may take, for this once (500GiB, 50%%)")
    listed = _command(commands, "list", _list, "datasets, and what they take", named=False)
    listed.add_argument("--json", action="store_true", help="print all numbers as JSON")
    _command(commands, "path", _path, "print a dataset's folder; what was evicted is fetched again")
    _command(commands, "pin", _pin, "never evict these", many=True)
    _command(commands, "unpin", _unpin, "these may be evicted again", many=True)
    _command(
        commands,
        "evict",
        _evict,
        "delete the files now; they are fetched again when they are used",
        many=True,
    )
    _command(commands, "remove", _remove, "delete the files, and forget the names", many=True)
    checked = _command(
        commands, "verify", _verify, "look for damaged files; exit status 1 if there are any", named=False
    )
    checked.add_argument("name", nargs="*", metavar="NAME", help="datasets (default: all that are here)")
    checked.add_argument("--repair", action="store_true", help="fetch again what is damaged")
    quota = _command(commands, "quota", _quota, "show or set what the store may take", named=False)
    quota.add_argument(
        "size", nargs="?", metavar="SIZE",
        help="500GiB, 50%% of the file system, or auto (80%% of what is free or taken already)",
    )  # fmt: skip


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    act: Callable[[Store, argparse.Namespace], int],
    purpose: str,
    *,
    named: bool = True,
    many: bool = False,
) -> argparse.ArgumentParser:
    made = commands.add_parser(name, help=purpose, description=purpose[0].upper() + purpose[1:] + ".")
    made.set_defaults(do=act)
    if named:
        made.add_argument("name", metavar="NAME", nargs="+" if many else None, help="a dataset")
    return made


def run(options: argparse.Namespace) -> int:
    """Run the command; its exit status."""
    with Store(quota=getattr(options, "quota", None)) as store:
        found: int = options.do(store, options)
        return found


class _Fetching:
    """Shows how far a download is: a bar on a terminal, a line at its beginning elsewhere."""

    def __init__(self, name: str) -> None:
        self._name, self._bar, self._begun = name, Bar("data", every=_EVERY), 0.0
        self._said = False

    def __enter__(self) -> _Fetching:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.close()
        if kind is KeyboardInterrupt and self._begun:
            print(
                f"headrace: ended; what has come of {self._name} is kept, and the same command goes on from there",
                file=sys.stderr,
            )

    def __call__(self, now: Progress) -> None:
        self._begun = self._begun or time.monotonic()
        rate = now.done / max(1e-3, time.monotonic() - self._begun)
        size = f"{show_size(now.done)} of {show_size(now.total)}" if now.total else show_size(now.done)
        self._bar(f"{size}, {show_size(rate)}/s, {safe(now.doing)}", now.done / max(1, now.total))
        if not sys.stderr.isatty() and not self._said:
            self._said = True
            what = f"{show_size(now.total)} to fetch" if now.total else now.doing or "fetching it"
            print(f"{self._name}: {what}", file=sys.stderr, flush=True)


def _add(store: Store, options: argparse.Namespace) -> int:
    with _Fetching(options.name) as show:
        path = store.add(options.name, options.url, unpack=options.unpack, pin=options.pin, show=show)
    (found,) = [one for one in overview(store).datasets if one.name == options.name]
    print(f"{options.name}: {show_size(found.bytes)} in {found.files} files, {path}")
    return 0


def _path(store: Store, options: argparse.Namespace) -> int:
    with _Fetching(options.name) as show:
        print(store.use(options.name, show=show))
    return 0


def _list(store: Store, options: argparse.Namespace) -> int:
    found = overview(store)
    print(
        msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
        if options.json
        else show_store(found)
    )
    return 0


def _pin(store: Store, options: argparse.Namespace) -> int:
    for name in options.name:
        care.pin(store, name)
        print(f"{name} stays")
    return 0


def _unpin(store: Store, options: argparse.Namespace) -> int:
    for name in options.name:
        care.pin(store, name, stays=False)
        print(f"{name} may be evicted")
    return 0


def _evict(store: Store, options: argparse.Namespace) -> int:
    for name in options.name:
        freed = care.evict(store, name)
        after = "it is fetched again when it is used" if freed else "what other datasets have, too, stays"
        print(f"{name} is evicted: {show_size(freed)} are free; {after}")
    return 0


def _remove(store: Store, options: argparse.Namespace) -> int:
    for name in options.name:
        print(f"{name} is removed: {show_size(care.evict(store, name, forget=True))} are free")
    return 0


def _verify(store: Store, options: argparse.Namespace) -> int:
    there = {one.name: one for one in overview(store).datasets}
    for name in options.name:
        if name not in there:
            raise NoSuchDataset(name, list(there))
    faults = []
    for name in options.name or [one.name for one in there.values() if one.bytes]:
        with Bar("verify", every=_EVERY) as bar:
            size = show_size(there[name].bytes)
            found = verify(
                store, name, lambda done, total, name=name, size=size: bar(  # type: ignore[misc]
                    f"{name}, {show_size(done)} of {size}", done / max(1, total)
                )
            )  # fmt: skip
        faults += found
        state = f"{len(found)} damaged" if found else "whole" if there[name].bytes else "not here"
        print(f"{name}: {there[name].files} files, {size}: {state}")
        for fault in found[:_SHOWN]:
            print(f"  {safe(fault.path, 200)}: {safe(fault.why, 200)}")
        if len(found) > _SHOWN:
            print(f"  and {len(found) - _SHOWN} more")
    if not faults:
        return 0
    if not options.repair:
        print("headrace: fetch again what is damaged: headrace data verify --repair", file=sys.stderr)
        return FAILED
    with _Fetching("repair") as show:
        repair(store, faults, show)
    print("repaired: what was damaged was fetched again")
    return 0


def _quota(store: Store, options: argparse.Namespace) -> int:
    if options.size is not None:
        care.set_quota(store, None if options.size == "auto" else _size(options.size))
    found = overview(store)
    print(f"{show_size(found.quota)}, of which {show_size(found.bytes)} are taken, in {found.root}")
    return 0


def _size(text: str) -> str:
    if text.strip().lstrip("0.") in ("", "%"):
        raise OptionError(
            f"quota={text!r}: a store without room is of no use; headrace data remove deletes datasets"
        )
    return text


def show_store(found: Overview) -> str:
    """The store as text."""
    lines = [
        f"{show_size(found.bytes)} of {show_size(found.quota)} in {found.root}"
        + (f", {show_size(found.incoming)} of it on its way" if found.incoming else "")
    ]
    if found.datasets:
        heads = ["name", "state", "size", "files", "used", "fetching", "in use by", "from"]
        lines += ["", *aligned_table(heads, [_row(one) for one in found.datasets])]
    return "\n".join(lines)


def _row(one: Dataset) -> list[str]:
    source = one.urls[0] + (f" and {len(one.urls) - 1} more" if len(one.urls) > 1 else "")
    return [
        one.name,
        one.state + (", pinned" if one.pinned else ""),
        show_size(one.bytes),
        str(one.files),
        f"{show_time(time.time() - one.used)} ago" if one.used else "-",
        show_time(one.cost),
        ", ".join(map(str, one.pids)) or "-",
        source if len(source) <= 32 else "…" + source[-31:],
    ]
