"""``headrace simulate``: run a scenario, show how far it is, and what came of it."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.cli.tables import aligned_table
from headrace.core.bar import Bar
from headrace.core.sizes import show_size
from headrace.simulate import (
    JobResult,
    NodeResult,
    Result,
    Simulation,
    load_scenario,
    make_result,
    ready_scenarios,
)

_EVERY = 0.1
"""Seconds between two pictures of the bar."""
_SHOWN = 8
"""Machines that are shown one by one."""
INTERRUPTED = 130


def describe(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Run a scenario on a virtual clock, with the samplers, evictions and host of the product. "
        f"Ready scenarios: {', '.join(ready_scenarios())}. Ctrl-C ends it with what was found so far."
    )
    parser.add_argument(
        "scenario", metavar="SCENARIO", help="the name of a ready scenario, or a file in TOML"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a value of the scenario: jobs.batch=128 in all jobs, jobs.0.batch=128 in the first",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="write all that was found to FILE (-: standard output)"
    )
    parser.add_argument(
        "--plot", metavar="FILE", help="draw rates and hits over time into FILE (needs matplotlib)"
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; its exit status."""
    draw: Callable[[Result, str], None] | None = None
    if options.plot:
        from headrace.cli.plot import (
            draw,
        )  # before the work: to find out afterwards that it lacks would be late
    scenario = load_scenario(options.scenario, options.set)
    # What lives here lives long, or is gone at once by its count of references: to look it over takes for ever.
    gc.disable()
    simulation = Simulation(scenario)
    status = 0
    try:
        with Bar("simulate", every=_EVERY) as bar:
            simulation.run(lambda: bar(f"{simulation.clock.now:,.1f} s of virtual time", simulation.progress))
    except KeyboardInterrupt:
        status = INTERRUPTED
    finally:
        gc.enable()
    result = make_result(simulation)
    if options.json == "-":
        print(_json(result))
    else:
        print(show_result(result, scenario.about))
        if options.json:
            Path(options.json).write_text(_json(result) + "\n", encoding="utf-8")
    if draw is not None:
        draw(result, options.plot)
    return status


def _json(result: Result) -> str:
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode()


def show_result(result: Result, about: str = "") -> str:
    """What was found, as text."""
    lines = [about] if about else []
    if not result.complete:
        lines.append("ended early: this is what was found so far")
    lines += [
        f"{result.images:,.0f} samples in {result.seconds:,.2f} s of virtual time: "
        f"{result.images_s:,.0f} per second, {result.cpu_s_per_1000:.3f} CPU-seconds per 1000",
        f"hit rate {result.hit_rate:.1%}; {result.decodes_per_sample:.3f} decodes per sample and epoch"
        + (f"; storage {result.storage:.0%} busy" if result.storage else ""),
        *_cluster(result),
        "",
        *aligned_table(
            ["job", "ranks", "sampling", "per s", "wait", "stragglers", "hits", "encoded", "decoded", "augmented",
             "decodes", "ahead"],
            [_job(job) for job in result.jobs],
        ),
        "",
        *aligned_table(
            ["machine", "cpu", "host", "network", "storage", "cache", "evicted", "last"], _nodes(result.nodes)
        ),
    ]  # fmt: skip
    return "\n".join(lines)


def _cluster(result: Result) -> list[str]:
    """What machines did for each other, where they did anything."""
    if not any(node.taken_over for node in result.nodes) and not any(job.helped for job in result.jobs):
        return []
    taken, stored = (sum(getattr(node, name) for node in result.nodes) for name in ("taken_over", "stored"))
    helped = sum(job.helped * job.images for job in result.jobs) / max(1.0, result.images)
    return [
        f"{taken:,.0f} samples came from other machines, {stored:,.0f} were read from storage; "
        f"{helped:.0%} of rows were prepared on other machines"
    ]


def _job(job: JobResult) -> list[str]:
    return [
        job.name,
        str(job.ranks),
        job.sampling if job.loader == "shared" else job.loader,
        f"{job.images_s:,.0f}",
        f"{job.wait:.1%}",
        f"{job.straggler:.1%}",
        f"{job.hit_rate:.1%}",
        *(f"{job.hits[form]:.1%}" for form in ("encoded", "decoded", "augmented")),
        f"{job.decodes_per_sample:.3f}",
        f"{job.ahead:.1f}",
    ]


def _nodes(nodes: list[NodeResult]) -> list[list[str]]:
    """The machines, or the first of them and those that were late most often."""
    late = sorted(nodes, key=lambda node: -node.late)[: _SHOWN // 2]
    shown = (
        nodes
        if len(nodes) <= _SHOWN
        else [*nodes[: _SHOWN // 2], *(node for node in late if node.number >= _SHOWN // 2)]
    )
    rows = [
        [
            str(node.number),
            *(f"{share:.1%}" for share in (node.cpu, node.host, node.network, node.storage)),
            show_size(node.cache_bytes),
            f"{node.evictions:.0f}",
            f"{node.late:.1%}",
        ]
        for node in shown
    ]
    if len(shown) < len(nodes):
        mean = [
            sum(getattr(node, name) for node in nodes) / len(nodes)
            for name in ("cpu", "host", "network", "storage", "cache_bytes", "evictions", "late")
        ]
        rows.append(
            [
                f"mean of {len(nodes)}",
                *(f"{share:.1%}" for share in mean[:4]),
                show_size(mean[4]),
                f"{mean[5]:.0f}",
                f"{mean[6]:.1%}",
            ]
        )
    return rows
