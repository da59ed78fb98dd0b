"""A simulation's result, worked out from how it stood when the stretch of time that counts began and ended."""

from __future__ import annotations

from dataclasses import asdict

from headrace.simulate.results import JobResult, Moment, NodeResult, Result
from headrace.simulate.simulation import Simulation, TrainingRun
from headrace.simulate.tally import Paid, Tally, Use, total


def ratio(part: float, total: float) -> float:
    """``part`` of ``whole``; nothing of nothing is nothing."""
    return part / total if total else 0.0


def make_result(simulation: Simulation) -> Result:
    """What a simulation found, or what it found so far."""
    runs, ended = simulation.runs, simulation.ended or simulation.moment()
    began = simulation.begun
    if began is None:
        nothing = [[Tally() for _ in run.ranks] for run in runs]
        began = Moment(0.0, nothing, [Use() for _ in simulation.nodes])
    seconds = ended.time - began.time
    per_rank = [
        [after.since(before) for before, after in zip(*pair, strict=True)]
        for pair in zip(began.ranks, ended.ranks, strict=True)
    ]
    everything = total([total(tallies) for tallies in per_rank])
    uses = [after.since(before) for before, after in zip(began.nodes, ended.nodes, strict=True)]
    epochs = ratio(everything.images, sum(run.samples for run in runs))
    storage = simulation.storage
    shared = storage is not None and simulation.scenario.storage.shared
    return Result(
        complete=simulation.ended is not None,
        seconds=seconds,
        began=began.time,
        images=everything.images,
        images_s=ratio(everything.images, seconds),
        hit_rate=ratio(everything.rows - everything.none, everything.rows),
        decodes_per_sample=ratio(everything.decodes, simulation.scenario.data.samples * epochs),
        decodes_per_image=ratio(everything.decodes, everything.images),
        cpu_s_per_1000=1000 * ratio(sum(use.cpu for use in uses), everything.images),
        storage=ratio(uses[0].storage, storage.capacity * seconds) if shared and storage is not None else 0.0,
        filled=everything.filled,
        paid=asdict(sum((use.paid for use in uses), Paid())),
        jobs=[_job(run, tallies, seconds, began.time) for run, tallies in zip(runs, per_rank, strict=True)],
        nodes=_nodes(simulation, uses, per_rank, seconds, shared),
        course=simulation.course,
    )


def _quantiles(moments: list[tuple[float, float]], since: float) -> tuple[float, float]:
    """The median and the 99th percentile of what was noted since a moment."""
    values = sorted(value for moment, value in moments if moment >= since)
    return (values[len(values) // 2], values[len(values) * 99 // 100]) if values else (0.0, 0.0)


def _job(run: TrainingRun, tallies: list[Tally], seconds: float, began: float) -> JobResult:
    found = total(tallies)
    waits = _quantiles([one for rank in run.ranks for one in rank.waits], began)
    delays = _quantiles(
        [one for rank in run.ranks if rank.agent is not None for one in rank.agent.delays], began
    )
    ranks = len(tallies)
    hits = {name: ratio(getattr(found, name), found.rows) for name in ("encoded", "decoded", "augmented")}
    return JobResult(
        name=run.name,
        ranks=ranks,
        loader=run.job.loader,
        sampling=run.job.sampling if run.job.loader == "shared" else "uniform",
        images=found.images,
        images_s=ratio(found.images, seconds),
        epochs=ratio(found.images, run.samples),
        wait=ratio(found.waited, ranks * seconds),
        straggler=ratio(found.straggled, ranks * seconds),
        hit_rate=sum(hits.values()),
        hits=hits,
        decodes_per_sample=ratio(found.decodes, found.images),
        ahead=sum(rank.ahead for rank in run.ranks) / ranks,
        wait_p50=waits[0],
        wait_p99=waits[1],
        helped=ratio(found.helped, found.rows),
        delay_p50=delays[0],
        delay_p99=delays[1],
    )


def _nodes(
    simulation: Simulation, uses: list[Use], per_rank: list[list[Tally]], seconds: float, shared: bool
) -> list[NodeResult]:
    late = [0.0] * len(uses)
    for run, tallies in zip(simulation.runs, per_rank, strict=True):
        for rank, tally in zip(run.ranks, tallies, strict=True):
            late[rank.node.number] += tally.late
    steps = sum(late)
    found = []
    for node, use in zip(simulation.nodes, uses, strict=True):
        network, storage, pool = node.network, node.storage, node.commons.state.pool
        cached: dict[str, int] = {}
        for shelf in pool.shelves.values():
            name = shelf.form.name.lower()
            cached[name] = cached.get(name, 0) + len(shelf)
        found.append(
            NodeResult(
                number=node.number,
                cpu=ratio(use.cpu, node.processors.capacity * seconds),
                host=ratio(use.host, seconds),
                network=ratio(use.network, network.capacity * seconds) if network is not None else 0.0,
                storage=(
                    ratio(use.storage, storage.capacity * seconds)
                    if storage is not None and not shared
                    else 0.0
                ),
                cache_bytes=pool.used,
                cached=cached,
                evictions=use.evictions,
                late=ratio(late[node.number], steps),
                memory_hits=ratio(use.found, use.asked),
                stored=use.stored,
                taken_over=use.taken_over,
                peer_hits=ratio(use.peer_found, use.asked),
            )
        )
    return found
