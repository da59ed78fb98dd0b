"""A profile as text."""

from __future__ import annotations

import time

from headrace.cli.tables import line, safe, table
from headrace.core.sizes import show_size
from headrace.measure import Profile, find_limits
from headrace.measure.cpu import CPU, Stage
from headrace.measure.preparing_thread import STAGES
from headrace.measure.seen import Seen
from headrace.measure.sizes import Sizes
from headrace.measure.storage import Storage

_WHERE = {"cold": "cold", "memory": "from memory", "decoded": "decoded samples cached"}
_ALL = 0.85
"""A thread that got more of a CPU than this had it to itself."""
_RESOURCES = {"storage": "storage-bound", "cpu": "CPU-bound", "cache": "memory-bound"}


def show_profile(profile: Profile, kept: str) -> str:
    """Everything that a person wants to see. ``kept``: where the profile was put."""
    machine = profile.machine
    lines = [
        line("recipe", f"{safe(profile.label, 80)}, {profile.samples:,} samples"),
        line(
            "machine",
            f"{safe(machine.hostname)}: {machine.cpus} x {safe(machine.cpu, 64)}, {machine.memory} GiB",
        ),
    ]
    if profile.sizes is not None:
        lines += _sizes(profile.sizes)
    lines += _storage(profile.storage)
    if profile.cpu is not None:
        lines += _cpu(profile.cpu)
    lines += table(
        "memory",
        ["threads", "out GB/s", "into GB/s"],
        [[str(at.threads), f"{at.out / 1e9:.1f}", f"{at.into / 1e9:.1f}"] for at in profile.memory],
    )
    if profile.seen is not None:
        lines += _seen(profile.seen)
    if profile.consumption:
        rates = [[name, _rate(rate)] for name, rate in reversed(profile.consumption.items())]
        lines += table("jobs", ["name", "takes samples/s"], rates)
    lines += [line("limit", limits_text(profile)), line("kept", kept)]
    return "\n".join(lines)


def limits_text(profile: Profile) -> str:
    """What limits the recipe on this machine, in one line."""
    limits = find_limits(profile)
    said = []
    if profile.storage is not None and not any(limit.where == "cold" for limit in limits):
        said.append("cold: not known, files stay in memory")
    for number, limit in enumerate(limits):
        unit = " samples/s" if number == 0 else ""
        resource = _RESOURCES.get(limit.resource, f"{limit.resource}-bound")
        said.append(f"{_WHERE[limit.where]}: {resource} at {_rate(limit.rate)}{unit}")
    return "; ".join(said)


def _rate(samples: float) -> str:
    return f"{samples:,.0f}" if samples >= 100 else f"{samples:,.1f}"


def _sizes(sizes: Sizes) -> list[str]:
    rows = []
    for form in ("encoded", "decoded", "augmented"):
        of = getattr(sizes, form)
        if of is None:
            continue
        times = sizes.inflation(form)
        rows.append(
            [
                form,
                show_size(of.mean),
                show_size(of.deviation),
                show_size(of.least),
                show_size(of.most),
                "" if times is None else f"{times:.1f}",
            ]
        )
    return list(table("sizes", ["form", "mean", "deviation", "least", "most", "times encoded"], rows))


def _storage(storage: Storage | None) -> list[str]:
    if storage is None:
        return [line("storage", "not measured: decode reads the files itself")]
    rows = [
        [
            str(cold.threads),
            _rate(cold.samples),
            f"{cold.bytes / 1e6:.1f}",
            f"{1e3 * cold.median:.2f}",
            f"{1e3 * cold.p99:.2f}",
            _rate(warm.samples),
        ]
        for cold, warm in zip(storage.cold, storage.warm, strict=True)
    ]
    lines = table("storage", ["threads", "samples/s", "MB/s", "median ms", "p99 ms", "again samples/s"], rows)
    if storage.from_memory:
        lines = [*lines, line("", "(files came from memory although they were to be dropped from it)")]
    return list(lines)


def _seen(seen: Seen) -> list[str]:
    costs = {name: getattr(seen, name) for name in ("decode", "augment", "uncached")}
    said = [f"{name} {1e3 * cost.cpu:.3f} CPU ms each" for name, cost in costs.items() if cost is not None]
    if seen.supply is not None:
        said.append(f"fetched at up to {seen.supply / 1e6:.1f} MB/s")
    lines = [line("seen", "; ".join([f"by loaders, last on {_date(seen.at)}", *said]))]
    storage = seen.storage
    if storage is not None:
        text = f"storage gave {storage.bytes / 1e6:.1f} MB/s when it was waited for, on {_date(storage.at)}"
        lines.append(
            line("", f"{text}: {storage.reads:.1f} reads at once, {1e3 * storage.latency:.2f} ms each")
        )
    return lines


def _date(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return "?"  # files can be changed by anybody


def _cpu(cpu: CPU) -> list[str]:
    stages: dict[str, Stage | None] = {name: getattr(cpu, name) for name in STAGES}
    shown = {name: stage for name, stage in stages.items() if stage is not None}
    widths = [rate.threads for rate in cpu.prepare.threads]
    rows = [
        [str(width), *(_rate(stage.threads[at].samples) for stage in shown.values())]
        for at, width in enumerate(widths)
    ]
    rows.append([f"{cpu.processes} x {cpu.threads}", *(_rate(stage.machine) for stage in shown.values())])
    rows.append(["CPU ms each", *(f"{1e3 * stage.cpu:.3f}" for stage in shown.values())])
    lines = list(table("cpu", ["threads", *shown], rows))
    if cpu.got is not None and cpu.got < _ALL:
        why = "others were at work" + ("" if cpu.held is None else ", or your code waits")
        lines.append(line("", f"(one thread got {cpu.got:.0%} of a CPU: {why}; better measured in quiet)"))
    if cpu.held is not None:
        lines.append(line("", f"your code holds the interpreter lock for {cpu.held:.0%} of the time"))
    return lines
