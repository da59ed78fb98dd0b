"""Commands and their arguments."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module

import msgspec

import headrace
from headrace.cli.arguments import seconds
from headrace.cli.show import show_status
from headrace.core.errors import HeadraceError
from headrace.host import control

FAILED = 1
NO_HOST = 3
"""Exit status where there is no host (2 is argparse's, for wrong arguments)."""
_MODULES = {
    "profile": "measure what a recipe costs on this machine",
    "doctor": "what a job waits for, and what would help by how much",
    "disk": "what lies in the disk tier; empty it",
    "data": "datasets on this machine's disk: fetch, list, pin, evict, verify",
    "cluster": "node servers on a Ray cluster: start, status, stop",
    "simulate": "jobs, machines and caches on paper: rates, hits, waits, stragglers",
}
"""Commands with a module of their own, which is imported where the command is named: recipes, OpenCV, user code
and simulations are what the others do without."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit status."""
    options = _parser(sys.argv[1:] if arguments is None else arguments).parse_args(arguments)
    try:
        if options.command == "status":
            found = _status(options.timeout, as_json=options.json)
        elif options.command in _MODULES:
            found = options.act(options)
        else:
            found = _stop(options.timeout)
        sys.stdout.flush()
        return found
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # whoever read the output has seen enough (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _parser(named: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace",
        description="Examine jobs, measure recipes, simulate; look at the host that this user's jobs share.",
    )
    parser.add_argument("--version", action="version", version=f"headrace {headrace.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    status = commands.add_parser(
        "status",
        help="jobs, datasets, cache, hit rates",
        description=f"Show jobs, datasets, cache and hit rates. Exit status {NO_HOST} if no host is running.",
    )
    status.add_argument(
        "--json", action="store_true", help="print all numbers as JSON (null if there is no host)"
    )
    status.add_argument(
        "--timeout", type=seconds, default=5.0, metavar="S", help="seconds to wait (default: 5)"
    )
    stop = commands.add_parser(
        "stop",
        help="end the host; jobs go on by themselves",
        description="End the host and free the shared cache. Jobs go on by themselves. Exit status "
        f"{NO_HOST} if no host is running.",
    )
    stop.add_argument(
        "--timeout", type=seconds, default=10.0, metavar="S", help="seconds to wait (default: 10)"
    )
    for name, purpose in _MODULES.items():
        parts = commands.add_parser(name, help=purpose)
        if name in named:
            module = import_module(f"headrace.cli.{name}")
            module.describe(parts)
            parts.set_defaults(act=module.run)
    return parser


def _status(timeout: float, *, as_json: bool) -> int:
    status = control.status(timeout)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(status), indent=2).decode())
    elif status is None:
        print("no host is running")
    else:
        print(show_status(status, time.time()))
    return 0 if status is not None else NO_HOST


def _stop(timeout: float) -> int:
    if not control.stop(timeout):
        print("no host is running")
        return NO_HOST
    print("the host has ended and its cache is free; jobs that used it go on by themselves")
    return 0
