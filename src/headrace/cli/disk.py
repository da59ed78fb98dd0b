"""``headrace disk``: what lies in the disk tier; empty it."""

from __future__ import annotations

import argparse
import os

from headrace.cache.disk import look_at, remove_all
from headrace.cli.tables import line
from headrace.core import environment
from headrace.core.errors import OptionError
from headrace.core.sizes import show_size


def describe(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = "Show what lies in the disk tier of this user's jobs, or empty it."
    parser.add_argument(
        "path", nargs="?", help="its folder (default: HEADRACE_DISK, else ~/.cache/headrace/disk)"
    )
    parser.add_argument(
        "--clear", action="store_true", help="remove all that lies there, if no running job uses it"
    )


def run(options: argparse.Namespace) -> int:
    """Show it, or empty it."""
    path = environment.disk_dir() if options.path is None else os.path.abspath(options.path)
    found = look_at(path)
    if found is None:
        print(f"there is no disk tier in {path}")
        return 0
    if options.clear:
        if not remove_all(path):
            raise OptionError(f"running jobs use the disk tier in {path}; end them first")
        print(f"removed {show_size(found.taken)} from {path}")
        return 0
    print(line("folder", path))
    print(line("holds", f"{show_size(found.taken)} of {show_size(found.budget)}, in {found.segments} files"))
    print(line("datasets", f"{found.datasets}, {found.running} of them open in running jobs"))
    return 0
