"""The parts of the benchmark that only headrace takes part in: a large listing, and a bucket in trouble.

Each is a module beside this one with

    def targets(server: Server, data: Path, quick: bool) -> list[Target]

which is called after the rounds, with the server that they had and a folder for files. The server can be reached
from the loaders' namespace only: ``network.inside(server.cable.client)`` begins a command that runs there.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks.bucket.server import Server
from benchmarks.bucket.targets import missing
from benchmarks.common.progress import say
from benchmarks.common.report import Target

PARTS = {
    "listing": (
        ("listing of 10 million keys: bytes per sample", "<= 40"),
        ("listing of 10 million keys: seconds to the first batch, manifest cached", "<= 3"),
    ),
    "faults": (
        ("a bucket in trouble: photos that an epoch left out, or gave twice", "<= 0"),
        ("a bucket in trouble: images/s from 5 s after it over before", ">= 0.95"),
    ),
}


def run(server: Server, data: Path, quick: bool) -> list[Target]:
    """The targets of each; those of one that is not there, or fails, as not measured."""
    found: list[Target] = []
    for name, rows in PARTS.items():
        module = f"{__package__}.{name}"
        if find_spec(module) is None:
            found += [missing(title, wanted, f"there is no {module}") for title, wanted in rows]
            continue
        say(f"measuring: {name}")
        try:
            found += import_module(module).targets(server, data, quick)
        except Exception as error:  # what fails here must not take the rounds with it
            why = f"{type(error).__name__}: {error}"
            found += [missing(title, wanted, why) for title, wanted in rows]
    return found
