"""``headrace doctor``: what jobs wait for, and what would help."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from headrace.cli.show import show_time
from headrace.cli.show_doctor import show_run
from headrace.cli.tables import aligned_table, safe
from headrace.core.errors import OptionError
from headrace.measure.runs import Run, list_runs, load_run, runs_dir, state_of
from headrace.planning import Curve, advise, curve

_NONE = (
    "no run is recorded in {place}. A loader records its run once it has delivered batches for a second; "
    "HEADRACE_RECORD=0 in its environment keeps it from that"
)


def describe(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Show for how long a training loop waited, for which stage, and what would help by how much: of "
        "the jobs that run now, else of the last run. Jobs that were started in the current directory come first."
    )
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="a script's name, a run's name, its number in --list, or the path of a record",
    )
    parser.add_argument("--list", action="store_true", help="show the runs that are recorded")
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON")
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="draw samples per second over the size of the cache into FILE (needs matplotlib)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; its exit status."""
    draw: Callable[[Curve, Run, str], None] | None = None
    if options.plot:
        # Before the work: to find out afterwards that it lacks would be late.
        from headrace.cli.plot_cache import draw
    if options.list:
        runs = list_runs()
        print(_json([_plain(run) for run in runs]) if options.json else _table(runs))
        return 0
    runs = list_runs()
    found = _choose(runs, options.run)
    if options.json:
        print(_json([_examined(run) for run in found]))
    else:
        print("\n\n".join(show_run(run, state_of(run), time.time()) for run in found))
        others = _others(runs, found) if options.run is None else ""
        if others:
            print(f"\n{others}")
    if draw is not None:
        if len(found) > 1:
            raise OptionError("--plot shows one run; name one of them, see headrace doctor --list")
        points = None if found[0].situation is None else curve(found[0].situation)
        if points is None:
            raise OptionError("nothing is known about caches for this run, so there is nothing to draw")
        draw(points, found[0], options.plot)
    return 0


def _choose(runs: list[Run], wanted: str | None) -> list[Run]:
    """The runs that are meant."""
    if wanted is None:
        if not runs:
            raise OptionError(_NONE.format(place=runs_dir()))
        here = os.getcwd()
        return _latest([run for run in runs if run.directory == here] or runs)
    if wanted.isdigit() and 1 <= int(wanted) <= len(runs):
        return [runs[int(wanted) - 1]]
    for run in runs:
        if run.name == wanted:
            return [run]
    path = Path(wanted)
    of_script = [run for run in runs if run.script and run.script == path.name]
    if of_script:
        return _latest(of_script)
    if path.is_file():
        loaded = load_run(path)
        if loaded is None:
            raise OptionError(
                f"{wanted} is no record of a run, or one of another version of headrace; and of a script of that "
                "name no run is recorded"
            )
        return [loaded]
    there = f"there are {len(runs)}, see headrace doctor --list" if runs else _NONE.format(place=runs_dir())
    raise OptionError(f"there is no run {wanted!r}: {there}")


def _latest(runs: list[Run]) -> list[Run]:
    """Those that run now; else, of the process that was last to end, the loader that ran longest."""
    running = [run for run in runs if state_of(run) == "running"]
    if running:
        return running
    last = [run for run in runs if _process(run) == _process(runs[0])]
    return [max(last, key=lambda run: run.updated - run.started)]


def _process(run: Run) -> tuple[str, int, int]:
    return run.hostname, run.pid, run.process_started


def _others(runs: list[Run], shown: list[Run]) -> str:
    """That there are more runs which may have been meant."""
    names = {run.name for run in shown}
    left = [run for run in runs if run.name not in names]
    running = sum(state_of(run) == "running" for run in left)
    loaders = sum(_process(run) == _process(shown[0]) for run in left)
    said = []
    if running:
        said.append(f"{running} other {'run is' if running == 1 else 'runs are'} under way")
    if loaders and not running:
        said.append(f"this process had {loaders} other {'loader' if loaders == 1 else 'loaders'}")
    return f"{'; '.join(said)}: headrace doctor --list" if said else ""


def _plain(run: Run) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(run)
    del plain["situation"]
    return {**plain, "state": state_of(run)}


def _examined(run: Run) -> dict[str, Any]:
    """A run with all that can be said about it."""
    situation = run.situation
    advice = None if situation is None else advise(situation)
    points = None if situation is None else curve(situation)
    said = {"advice": advice, "says": None if advice is None else str(advice), "curve": points}
    return {**_plain(run), **said, "situation": situation}


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _table(runs: list[Run]) -> str:
    if not runs:
        return _NONE.format(place=runs_dir())
    now = time.time()
    rows = [
        [
            str(number),
            run.name,
            safe(run.script, 32) or "-",
            state_of(run),
            f"{run.rank}/{run.world_size}",
            show_time(run.updated - run.started),
            show_time(now - run.updated),
            f"{run.samples:,}",
            _waited(run),
            safe(run.label, 48),
        ]
        for number, run in enumerate(runs, 1)
    ]
    heads = ["number", "run", "script", "state", "rank", "lasted", "ago", "samples", "waited", "data"]
    return "\n".join(aligned_table(heads, rows))


def _waited(run: Run) -> str:
    total = None if run.situation is None else run.situation.total
    return f"{total.waited / total.seconds:.0%}" if total is not None and total.seconds else "-"
