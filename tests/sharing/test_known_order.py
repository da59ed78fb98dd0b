"""Jobs that draw for themselves and share: the host knows their orders, keeps what is needed soonest, and no job gets
other samples for that."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.coordinate.event_log import read_log, replay
from headrace.coordinate.events import Asked
from headrace.host import control
from headrace.sampling import Geometry, UniformEpoch
from tests.coordinate.known_jobs import least_misses
from tests.loader.helpers import wait_until
from tests.sharing.driver import Job, assert_exact
from tests.sharing.fixtures import Start, processes_of
from tests.sharing.recipes import BYTES

pytestmark = pytest.mark.slow

SIZE, BATCH = 2048, 16
EACH = 2 * BYTES
"""What a sample takes of the cache: it has a head."""
CACHE = SIZE * EACH // 4
DECODED = (0, 100, 0)
"""How the cache is split. (These samples are decoded in no time and are twice as large then: where a busy machine
makes storage look slow, it is right to keep them encoded, and all of them are decoded again.)"""
UNIFORM: dict[str, Any] = {"sampling": "uniform", "batch_size": BATCH, "cache": CACHE, "split": DECODED}


def batches_of(seed: int, epochs: int, rank: int = 0, ranks: int = 1) -> list[np.ndarray]:
    """What a rank draws."""
    geometry = Geometry(BATCH, rank, ranks)
    found = []
    for epoch in range(epochs):
        draws = UniformEpoch(SIZE, geometry, seed=seed, epoch=epoch, shuffle=True)
        found += [drawn.indices for drawn in iter(draws.draw, None)]
    return found


def asked(log: Path) -> list[np.ndarray]:
    """The batches in the order in which the host was asked for them: how far jobs are apart is the machine's to say,
    and so is how much of what one has prepared the next can have."""
    with log.open("rb") as file:
        events = [entry.event for entry in read_log(file)[1]]
    return [
        np.frombuffer(event.indices, np.int64)
        for event in events
        if isinstance(event, Asked) and event.indices
    ]


def recently_used(uses: list[np.ndarray], room: int) -> int:
    """Samples that have to be prepared if what was used longest ago goes first."""
    cached: dict[int, None] = {}
    misses = 0
    for ids in uses:
        for sample in ids.tolist():
            misses += sample not in cached
            cached.pop(sample, None)
            cached[sample] = None
            if len(cached) > room:
                del cached[next(iter(cached))]
    return misses


def jobs_together(start: Start, specs: list[dict[str, Any]], counts: Path, **environment: str) -> list[Job]:
    """Jobs that begin at the same time, and go on at the same pace: one that the machine stops for a while, now and
    then, uses samples at other times than anybody could foresee."""
    counts.write_bytes(bytes(8 * len(specs)))
    terms = {"data": {"size": SIZE}, "wait": True, "slow": 0.004}
    jobs = [
        start(environment, **terms, **spec, together=[str(counts), place, len(specs)])
        for place, spec in enumerate(specs)
    ]
    for job in jobs:
        job.until("waiting")
    for job in jobs:
        job.tell()
    return jobs


def end_all(jobs: list[Job]) -> int:
    """Samples that were prepared."""
    for job in jobs:
        job.end()
    return control.status().decodes


def test_two_jobs_prepare_little_more_than_has_to_be(start: Start, place: Path, tmp_path: Path) -> None:
    log, epochs, decodes = tmp_path / "events", 3, {}
    for eviction in ("lru", "auto"):
        specs = [
            {"loader": {**UNIFORM, "seed": seed, "eviction": eviction}, "epochs": epochs} for seed in (1, 2)
        ]
        environment = {"HEADRACE_HOST_EVENTS": str(log)} if eviction == "auto" else {}
        jobs = jobs_together(start, specs, tmp_path / eviction, **environment)
        jobs[0].until("epoch")
        assert control.status().eviction == ("reuse" if eviction == "auto" else "lru")
        decodes[eviction] = end_all(jobs)
        for seed, job in enumerate(jobs, 1):
            job.check()
            got = [batch for event in job.epochs() for batch in event["batches"]]
            assert got == [ids.tolist() for ids in batches_of(seed, epochs)], "the order is the job's own"
        control.stop()
        assert wait_until(lambda: not processes_of(place), 20)
    uses, room = asked(log), CACHE // EACH
    least, recent = least_misses(uses, len(uses), room), recently_used(uses, room)
    print({"least": least, "least recently used": recent, **decodes, "all": 2 * epochs * SIZE})
    assert decodes["auto"] < 0.9 * decodes["lru"]
    assert decodes["auto"] < least + 0.25 * (recent - least)
    with log.open("rb") as file:
        replayed = replay(io.BytesIO(file.read()))
    assert replayed.events > 100 and not replayed.different


def test_ranks_of_one_job_prepare_little_more_than_has_to_be(
    start: Start, place: Path, tmp_path: Path
) -> None:
    log, epochs, ranks = tmp_path / "events", 3, 3
    specs = [
        {"loader": {**UNIFORM, "seed": 5, "rank": rank, "world_size": ranks}, "epochs": epochs}
        for rank in range(ranks)
    ]
    jobs = jobs_together(start, specs, tmp_path / "counts", HEADRACE_HOST_EVENTS=str(log))
    jobs[0].until("epoch")
    assert control.status().eviction == "reuse"
    decodes = end_all(jobs)
    for epoch in range(epochs):
        together = [batch for job in jobs for batch in job.epochs()[epoch]["batches"]]
        assert_exact(together, range(SIZE), f"epoch {epoch}")
    uses = asked(log)
    least, recent = (
        count(uses, CACHE // EACH) for count in (lambda u, r: least_misses(u, len(u), r), recently_used)
    )
    print({"least": least, "least recently used": recent, "auto": decodes, "all": epochs * SIZE})
    assert decodes < least + 0.65 * (recent - least)


def test_a_job_that_is_killed_and_one_that_resumes_are_no_harm_to_others(start: Start, place: Path) -> None:
    terms = {"data": {"size": SIZE}, "slow": 0.004}
    whole = start(**terms, loader={**UNIFORM, "seed": 1}, epochs=4)
    victim = start(**terms, loader={**UNIFORM, "seed": 2}, epochs=100)
    saver = start(**terms, loader={**UNIFORM, "seed": 3}, epochs=2, act_in=1, save_at=20, leave=True)
    victim.until("epoch")
    assert control.status().eviction == "reuse"
    victim.kill()
    saved = saver.until("state")
    saver.wait()
    assert wait_until(lambda: len(control.status().jobs) == 1, 20)
    assert control.status().eviction == "reuse", "the others are still known"
    state = json.loads(json.dumps(saved["state"]))
    again = start(**terms, loader={**UNIFORM, "seed": 3, "batch_size": 48}, state=state, epochs=2)
    again.end()
    assert_exact(saved["batches"] + again.epochs()[0]["batches"], range(SIZE))
    assert_exact(again.epochs()[1]["batches"], range(SIZE))
    whole.end()
    whole.check()


def test_idle_workers_fetch_what_is_needed_soonest(start: Start, place: Path) -> None:
    # (a worker that was given nothing asks again after an eighth of a second)
    job = start(data={"size": 256}, loader={**UNIFORM, "cache": 128 * EACH, "seed": 1}, slow=0.15)
    job.end()
    job.check()
    refills = control.status().refills
    print({"refills": refills, "hits": job.stats["hits"]})
    assert refills > 20
    assert job.stats["hits"] > refills // 2, "nothing of its first epoch was there before"


def test_a_job_that_draws_otherwise_and_one_without_a_known_order(start: Start, place: Path) -> None:
    terms = {"data": {"size": SIZE}, "slow": 0.004}
    known = start(**terms, loader={**UNIFORM, "seed": 1}, epochs=50, endless=True)
    known.until("epoch")
    assert control.status().eviction == "reuse"
    other = start(
        **terms, loader={"batch_size": BATCH, "cache": CACHE, "split": DECODED}, epochs=1, hold=True
    )
    other.until("epoch")
    assert control.status().eviction == "auto"
    other.tell()
    other.end()
    other.check()
    assert wait_until(lambda: control.status().eviction == "reuse", 20)
    known.tell()
    known.end()
    known.check()
