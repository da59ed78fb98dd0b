"""What the doctor says, as text: the cause first, then what would help, then the numbers that it rests on."""

from __future__ import annotations

from headrace.cli.show import show_time
from headrace.cli.tables import line, safe
from headrace.core.sizes import show_size
from headrace.measure.runs import Run
from headrace.planning import Advice, Remedy, Situation, advise
from headrace.planning.advice import LIMITS

_STAGES = {
    "storage": "storage",
    "decode": "decode",
    "augment": "augment",
    "python": "your own code",
    "orders": "orders",
    "dataset": "the dataset",
}
_SHOWN = 0.005
"""Parts of stalls that are smaller are not worth a word."""


def show_run(run: Run, state: str, now: float) -> str:
    """A run, for people."""
    said = {"running": "running", "finished": "finished", "elsewhere": f"on {safe(run.hostname)}"}
    ago = show_time(now - run.updated)
    rank = f", rank {run.rank} of {run.world_size}" if run.world_size > 1 else ""
    about = f"{run.name} ({said.get(state, 'ended without a word')}, {ago} ago){rank}"
    lines = [line("run", about)]
    if run.script:
        where = f" in {safe(run.directory, 100)}" if run.directory else ""
        lines.append(line("script", f"{safe(run.script, 100)}, process {run.pid}{where}"))
    lines.append(line("data", safe(run.label, 100)))
    lines += _native(run)
    situation = run.situation
    advice = None if situation is None else advise(situation)
    if situation is None or advice is None:
        return "\n".join([*lines, line("cause", "not known: too little was measured")])
    lines.append(line("cause", advice.bound))
    lines.append(line("waited", _waited(advice, situation)))
    if advice.cause != "trainer":
        lines.append(line("stalls", _stalls(advice)))
    lines += _remedies(advice)
    lines += [line("note" if number == 0 else "", note) for number, note in enumerate(advice.notes)]
    return "\n".join([*lines, *_numbers(advice, situation)])


def _native(run: Run) -> list[str]:
    """Of a dataset that headrace knows: what it does in its place, and what is still the user's code."""
    if not run.native and not run.own_code:
        return []
    lines = [line("native", safe(", ".join(run.native), 400) or "nothing")]
    lines += [line("own code" if at == 0 else "", safe(note, 200)) for at, note in enumerate(run.own_code)]
    return lines + ([line("", safe(run.hint, 200))] if run.hint else [])


def _waited(advice: Advice, situation: Situation) -> str:
    total = situation.total
    whole = f"; in the whole run {total.waited:.1f} s of {total.seconds:.1f} s" if total.seconds else ""
    return f"{advice.waited:.0%} of the time lately{whole}"


def _stalls(advice: Advice) -> str:
    parts = sorted(advice.stalls.items(), key=lambda part: -part[1])
    return ", ".join(f"{_STAGES[name]} {share:.0%}" for name, share in parts if share > _SHOWN)


def _remedies(advice: Advice) -> list[str]:
    if not advice.remedies:
        return [line("would help", "nothing that is known here")]
    rows = [
        [_gain(one), f"{one.rate:,.0f}", one.what, LIMITS.get(one.then, one.then)] for one in advice.remedies
    ]
    width = max(len(row[2]) for row in rows)
    lines = []
    for number, (gain, rate, what, then) in enumerate(rows):
        text = f"{gain:<11} {what:<{width}}  {rate:>7} samples/s, then limited by {then}"
        lines.append(line("would help" if number == 0 else "", text))
    return lines


def _gain(remedy: Remedy) -> str:
    return f"{'about ' if remedy.estimated else ''}{remedy.gain:.2f}x"


def _numbers(advice: Advice, situation: Situation) -> list[str]:
    known = advice.numbers
    found = [
        ["samples/s", f"{advice.rate:,.0f} (over {known['seconds']:.0f} s, the latest counting most)"],
        ["the loop alone takes", f"{advice.trainer:,.0f} samples/s"],
        ["CPUs", f"{known.get('cpus', 0):.0f}, of which {known.get('cpus_busy', 0):.2f} busy with this job"],
        ["preparing threads", f"{known.get('hands', 0):.0f}"],
    ]
    if situation.cache:
        full = "" if situation.shared else f", {show_size(situation.cached)} of them in use"
        found.append(["cache", f"{show_size(situation.cache)}{full}"])
        if abs(advice.expected / advice.rate - 1) > 0.05:
            found.append(["samples/s, cache full", f"{advice.expected:,.0f}"])
    stages = ("fetch", "decode", "augment", "user", "loop")
    costs = [
        f"{name} {1e3 * known[f'{name}_cpu_s']:.3f}"
        for name in stages
        if known.get(f"{name}_cpu_s", 0) > 1e-6
    ]
    if costs:
        found.append(["CPU ms a sample", ", ".join(costs)])
    sizes = [
        f"{show_size(known[f'{form}_bytes'])} {form}"
        for form in ("encoded", "decoded")
        if known.get(f"{form}_bytes", 0) > 1
    ]
    if sizes and situation.kind == "recipe":
        found.append(["a sample", ", ".join(sizes)])
    if "storage_bytes_s" in known and situation.kind == "recipe":
        found.append(["storage", f"{known['storage_bytes_s'] / 1e6:,.1f} MB/s"])
    found.append(["measured to model", f"{known.get('model_fit', 1.0):.2f}"])
    width = max(len(name) for name, _ in found)
    return [
        line("numbers" if number == 0 else "", f"{name:<{width}}  {value}")
        for number, (name, value) in enumerate(found)
    ]
