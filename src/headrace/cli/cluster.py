"""``headrace cluster``: node servers on all nodes of a Ray cluster."""

from __future__ import annotations

import argparse

import msgspec

from headrace.cli.tables import line, table
from headrace.cluster import on_ray
from headrace.cluster.messages import DatasetStatus, Status
from headrace.cluster.node_actor import Terms
from headrace.cluster.ports import check_room, parse_ports
from headrace.cluster.rows import NIXL, TLS
from headrace.core.errors import OptionError
from headrace.core.sizes import parse_size, show_size

NO_CLUSTER = 3
_MEMORY = "30%"


def describe(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Node servers on all nodes of a Ray cluster: they hold samples for all jobs of the cluster, and read each of "
        'them from storage once. Jobs use them with share="ray".'
    )
    commands = parser.add_subparsers(dest="act_on", required=True, metavar="COMMAND")
    start = commands.add_parser("start", help="start a server on every node, now and as nodes come")
    start.add_argument(
        "--memory",
        default=_MEMORY,
        metavar="SIZE",
        help=f"of each node, for samples: bytes, '8GiB', or a share of what is free (default: {_MEMORY})",
    )
    start.add_argument(
        "--cpus",
        type=int,
        default=-1,
        metavar="N",
        help="processes of each node that prepare rows for ranks elsewhere, with what CPU time nobody else wants "
        "(default: as many as it has CPUs; 0: none)",
    )
    start.add_argument(
        "--ports",
        default="",
        metavar="FIRST-LAST",
        help="for servers and helpers to listen on, as a firewall leaves them open: one for each node and one for "
        "each of its helpers (default: whichever the system chooses)",
    )
    start.add_argument(
        "--code",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module or package whose code helpers may run for recipes that name it; may be given several times "
        "(default: recipes with code of your own are prepared on the nodes of their jobs)",
    )
    start.add_argument(
        "--transport",
        choices=(TLS, NIXL),
        default=TLS,
        help="how rows go from node to node: tls, or nixl, which writes them into memory over RDMA and encrypts "
        "nothing (default: tls)",
    )
    status = commands.add_parser(
        "status", help=f"what each node holds; exit status {NO_CLUSTER} if there is none"
    )
    status.add_argument("--json", action="store_true", help="print all numbers as JSON")
    stop = commands.add_parser("stop", help="end all servers; jobs go on by themselves")
    for one in (start, status, stop):
        one.add_argument(
            "--address", default="auto", help="of the Ray cluster (default: the one of this node)"
        )


def run(options: argparse.Namespace) -> int:
    """Start, show or stop it."""
    if options.act_on == "start":
        return _start(options)
    with on_ray.connected(options.address) as ray:
        if options.act_on == "stop":
            ended = on_ray.stop(ray)
            print("the node servers have ended; jobs that used them go on by themselves" if ended else _NONE)
            return 0 if ended else NO_CLUSTER
        found = on_ray.statuses(ray)
    if found is None:
        print("null" if options.json else _NONE)
        return NO_CLUSTER
    found.sort(key=lambda one: one.node)
    if options.json:
        plain = [msgspec.structs.asdict(one) for one in found]
        for one in plain:
            one["datasets"] = [msgspec.structs.asdict(dataset) for dataset in one["datasets"]]
        print(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode())
    else:
        print("\n".join(_shown(found)))
    return 0


_NONE = "no headrace cluster is running on this Ray cluster; start one with: headrace cluster start"


def _modules(names: list[str]) -> tuple[str, ...]:
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise OptionError(f"--code {name}: expected a module or package, such as my_package.augment")
    return tuple(sorted(set(names)))


def _start(options: argparse.Namespace) -> int:
    if not parse_size(options.memory, total=1 << 40, option="memory"):
        raise OptionError(f"--memory {options.memory}: a server without memory holds nothing")
    ports = parse_ports(options.ports)
    if options.cpus > 0:
        check_room(ports, options.cpus)
    terms = Terms(options.memory, options.cpus, ports, _modules(options.code), options.transport)
    with on_ray.connected(options.address) as ray:
        before = on_ray.current(ray) is not None
        view = on_ray.start(ray, terms)
    if before:
        print("a cluster was running already, as it was started then; to change it: headrace cluster stop")
    print(
        line(
            "servers", f"{len(view.nodes)}, with {show_size(sum(one.memory for one in view.nodes))} together"
        )
    )
    for one in view.nodes:
        helpers = f", {len(one.helpers)} helpers" if one.helpers else ""
        if one.helpers and options.transport == NIXL:
            helpers += (
                " by NIXL"
                if all(helper.nixl for helper in one.helpers)
                else " by TLS: NIXL does not start there"
            )
        rails = f", also at {', '.join(one.rails)}" if one.rails else ""
        print(line("", f"{one.id[:12]}  {one.host}:{one.port}  {show_size(one.memory)}{helpers}{rails}"))
    print(line("use it", 'hr.DataLoader(recipe, ..., share="ray"), or HEADRACE_SHARE=ray'))
    return 0


def _shown(found: list[Status]) -> list[str]:
    rows = [
        [
            one.node[:12],
            f"{show_size(one.used)} of {show_size(one.memory)}",
            f"{sum(dataset.held for dataset in one.datasets):,}",
            f"{one.served:,}",
            show_size(one.served_bytes),
            f"{one.fetched:,}",
            show_size(one.fetched_bytes),
            f"{one.clients}",
        ]
        for one in found
    ]
    heads = ["node", "memory", "samples", "given", "bytes", "from storage", "bytes", "connections"]
    lines = list(table("nodes", heads, rows))
    held: dict[str, list[DatasetStatus]] = {}
    for one in found:
        for dataset in one.datasets:
            held.setdefault(dataset.fingerprint, []).append(dataset)
    rows = [
        [
            parts[0].name,
            f"{parts[0].samples:,}",
            f"{sum(part.held for part in parts):,}",
            show_size(sum(part.nbytes for part in parts)),
        ]
        for parts in held.values()
    ]
    lines += table("datasets", ["", "samples", "held", "bytes"], rows)
    if decoded := sum(one.decoded for one in found):
        lines.append(
            line("decoded", f"{decoded:,} samples, {show_size(sum(one.decoded_bytes for one in found))}")
        )
    return lines
