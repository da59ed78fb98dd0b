"""The benchmark of ranks in lockstep: its storage, its barrier, what it makes of time stamps, and real runs."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.common.rounds import RunFailed, run_process
from benchmarks.common.tree import adopt_orphans
from benchmarks.ranks import figures, pictures, shift, storage, targets, threads, workers
from benchmarks.ranks.barrier import Barrier
from benchmarks.ranks.runs import calm
from benchmarks.ranks.storage import Storage, Switch
from PIL import Image

CLASSES = np.arange(200_000) % 10
REPOSITORY = Path(__file__).resolve().parents[2]


# -- storage ---------------------------------------------------------------------------------------------------


def test_a_tail_has_the_rare_samples_it_says() -> None:
    found = storage.delays("tails", CLASSES)
    assert np.mean(found == 0.5) == pytest.approx(0.001, rel=0.2)
    assert np.mean((found >= 0.05) & (found <= 0.2)) == pytest.approx(0.01, rel=0.1)
    assert np.median(found) == pytest.approx(0.002, rel=0.05)


def test_a_slow_directory_is_slow_as_a_whole_and_no_other_is() -> None:
    found = storage.delays("directory", CLASSES)
    assert set(found[CLASSES == storage.SLOW_CLASS]) == {0.04}
    assert found[CLASSES != storage.SLOW_CLASS].max() < 0.04


@pytest.mark.parametrize("scenario", ["tails", "directory", "0.02"])
def test_a_sample_takes_the_same_time_however_many_there_are(scenario: str) -> None:
    whole = storage.delays(scenario, CLASSES)
    assert np.array_equal(storage.delays(scenario, CLASSES[:1000]), whole[:1000])


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("pictures")
    found = {}
    for name, size in (("small", (48, 36)), ("heavy", (96, 72))):
        found[name] = place / name
        pictures._fill(found[name], size, [], 20)
    return found


def test_a_switch_changes_what_another_process_reads(roots: dict[str, Path], tmp_path: Path) -> None:
    switch = Switch.make(tmp_path / "switch")
    made = Storage(roots["small"], 50, "fast", roots["heavy"], switch.path)
    there: Storage = pickle.loads(pickle.dumps(made))
    first, *_ = storage.find(roots["small"])[0]
    assert there.read(20) == Path(first).read_bytes()
    switch.set(1, True)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        heavy = pool.apply(there.read, (20,))
    assert heavy == Path(first.replace("small", "heavy")).read_bytes()


def test_samples_have_the_class_of_their_file(roots: dict[str, Path]) -> None:
    made = Storage(roots["small"], 50, "fast")
    for index in range(50):
        assert f"class_{made.labels[index]}" in made.paths[index % 20]


def test_pictures_are_drawn_where_there_are_no_photos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object) -> Path:
        raise pictures.PhotosUnavailable("no network")

    monkeypatch.setattr(pictures, "make_photos", unavailable)
    monkeypatch.setattr(pictures, "HEAVY", (96, 72))
    kind, found = pictures.make_pictures(tmp_path, count=10)
    assert kind == pictures.DRAWN
    assert {name: len(storage.find(root)[0]) for name, root in found.items()} == {
        "small": 10,
        "heavy": 10,
        "full": 10,
    }
    with Image.open(storage.find(found["full"])[0][0]) as image:
        assert image.size == pictures.FULL


# -- the barrier -----------------------------------------------------------------------------------------------


def test_nobody_passes_a_barrier_before_all_are_there() -> None:
    ranks, steps = 4, 300
    made = Barrier.make(ranks)
    arrived = [0] * ranks
    early: list[int] = []

    def run(rank: int) -> None:
        mine = Barrier(ranks, made.descriptors)
        for step in range(1, steps + 1):
            arrived[rank] = step
            mine.wait()
            if min(arrived) < step:
                early.append(step)

    all_ranks = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for one in all_ranks:
        one.start()
    for one in all_ranks:
        one.join(30)
    assert not any(one.is_alive() for one in all_ranks)
    made.close()
    assert arrived == [steps] * ranks
    assert not early


# -- figures ---------------------------------------------------------------------------------------------------


def test_a_step_is_imbalanced_when_a_batch_is_late_by_more_than_a_tenth_of_it() -> None:
    came = [[0.0, 1.0, 2.00, 3.00], [0.0, 1.2, 2.05, 2.89]]
    assert figures.imbalanced(came, 1.0) == 0.5


def test_figures_of_a_run_leave_out_the_warm_up() -> None:
    went = [[0.0, 5.0, 6.0, 7.0, 9.0]] * 2
    asked = [[0.0, 4.0, 5.5, 6.5, 7.5]] * 2
    came = [[0.0, 5.0, 6.0, 7.0, 7.5], [0.0, 4.0, 5.5, 6.5, 9.0]]
    found = figures.lockstep(asked, came, went, warm=2, step_s=0.5, images=10)
    assert found["steps"] == 3
    assert found["images_s"] == pytest.approx(30 / 4)
    assert found["p50_ms"] == pytest.approx(1000)
    assert found["imbalanced"] == 1.0
    assert found["waited_ms"] == pytest.approx(1000 * (0.5 + 0.5 + 1.5) / 6)
    assert found["of_the_most"] == pytest.approx(7.5 / 20)


# -- targets ---------------------------------------------------------------------------------------------------


def run(**figures: Any) -> dict[str, Any]:
    usual = {"images_s": 1000.0, "imbalanced": 0.05, "p99_over_p50": 1.5, "of_the_most": 0.8}
    return {"others_cpu": 0.0, "seen_first": 2, "seen_all": 9, "told": {"threads": 1}, **usual, **figures}


def lockstep(**ours: Any) -> dict[str, list[Any]]:
    return {
        "torch-few": [run(images_s=300.0, p99_over_p50=9.0)],
        "torch-four": [run(images_s=500.0, p99_over_p50=6.0)],
        "headrace-fixed": [run(images_s=800.0)],
        "headrace-equal": [run(images_s=640.0)],
        "headrace": [run(**ours)],
    }


def met(found: list[Any]) -> dict[str, bool]:
    return {one.name.split(": ")[1]: one.met for one in found}


def test_torch_counts_by_the_better_of_its_set_ups() -> None:
    found = targets.compute("case", lockstep(), 2)
    assert {one.name.split(": ")[1]: one.value for one in found} == {
        "imbalanced steps": 0.05,
        "images/s over torch": 2.0,
        "images/s over fixed threads": 1.25,
        "images/s over fixed threads at equal priority": 1.5625,
        "p99 of step time over p50": 1.5,
        "preparing threads at once": 2,
    }
    assert all(one.met for one in found)


def test_targets_that_are_missed_are_said_to_be() -> None:
    worse = {"images_s": 700.0, "imbalanced": 0.2, "p99_over_p50": 3.0, "preparing": 3}
    assert not any(met(targets.compute("case", lockstep(**worse), 2)).values())


def test_steady_steps_are_asked_for_where_torch_has_none() -> None:
    runs = lockstep(p99_over_p50=3.0)
    for name in targets.TORCH:
        runs[name] = [run(images_s=500.0, p99_over_p50=4.0)]
    found = targets.compute("case", runs, 2)
    assert met(found)["p99 of step time over p50"]
    assert "<= 2 if torch > 5" in [one.target for one in found]


def test_who_is_missing_makes_no_target_met() -> None:
    runs = {"headrace": lockstep()["headrace"], "dali": [None]}
    found = met(targets.compute("case", runs, 2))
    assert not found["images/s over torch"]
    assert not found["images/s over fixed threads"]
    assert found["imbalanced steps"]


def test_disturbed_rounds_are_left_out_where_there_are_others() -> None:
    runs = {"a": [run(), run(others_cpu=1.0)], "b": [run(), run()]}
    quiet, note = calm(runs)
    assert [len(row) for row in quiet.values()] == [1, 1]
    assert note == "1 of 2 rounds were undisturbed"
    assert calm({"a": [run(others_cpu=1.0)]})[1] == "others kept up to 1.0 CPUs busy"


def test_a_shift_is_held_against_the_best_division_of_each_phase() -> None:
    runs = {
        shift.AUTO: [run(phases=[90.0, 80.0, 50.0])],
        "1 worker, 1 in flight": [run(phases=[100.0, 40.0, 50.0])],
        "2 workers, 4 in flight": [run(phases=[60.0, 80.0, 40.0])],
    }
    found = shift.targets(1, runs)
    assert [one.value for one in found] == [0.9, 1.0, 1.0]
    assert found[1].note == "best: 2 workers, 4 in flight"


@pytest.mark.parametrize(
    ("cpus", "ranks", "wanted"), [(2, 1, {1, 2, 4}), (2, 4, {1, 2}), (16, 1, {8, 16, 32}), (16, 4, {2, 4, 8})]
)
def test_divisions_of_threads_suit_the_machine(cpus: int, ranks: int, wanted: set[int]) -> None:
    found = shift.divisions(cpus, ranks, quick=False)
    assert {number for number, _ in found} == wanted
    assert {reads for _, reads in found} == {1, 4, 16, 32}
    assert set(shift.divisions(cpus, ranks, quick=True)) <= set(found)


@pytest.mark.parametrize(
    ("cpus", "ranks", "wanted"),
    [(2, 1, [1, 2, 4, 8]), (2, 8, [1, 2]), (16, 1, [1, 2, 4, 8, 16, 32, 64]), (16, 8, [1, 2, 4, 8])],
)
def test_numbers_of_workers_reach_four_for_each_cpu(cpus: int, ranks: int, wanted: list[int]) -> None:
    assert workers.numbers(cpus, ranks, quick=False) == wanted


def test_left_out_is_held_against_the_best_number() -> None:
    rates = {workers.LEFT_OUT: 95.0, "1": 60.0, "2": 100.0, "4": 90.0}
    found = workers.against_best("case", {name: [run(images_s=rate)] for name, rate in rates.items()})
    assert (found.value, found.note) == (0.95, "best: 2")


def test_a_thread_is_read_from_its_line() -> None:
    assert threads.parse("7 (head) race) S 1 2") == ("head) race", "S")
    assert threads.runnable([os.getpid()]).all >= 1


# -- a run -----------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_orphans_stay() -> Iterator[None]:
    """What measures keeps orphans below its process, and in this one other tests count what is there."""
    yield
    adopt_orphans(False)


def measure(roots: dict[str, Path], **wanted: Any) -> dict[str, Any]:
    orders = {
        "contender": "headrace",
        "pictures": str(roots["small"]),
        "scenario": "fast",
        "ranks": 2,
        "batch": 4,
        "size": 16,
        "warm": 2,
        "steps": 6,
        "step_s": 0.0,
        **wanted,
    }
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
    command = [sys.executable, "-m", "benchmarks.ranks.node", json.dumps(orders)]
    return run_process(command, REPOSITORY, {"PYTHONPATH": paths, "HEADRACE_RECORD": "0"}, 120)


@pytest.mark.slow
def test_a_run_of_two_ranks_through_all_phases(roots: dict[str, Path]) -> None:
    found = measure(
        roots,
        contender="headrace-fixed",
        heavy=str(roots["heavy"]),
        steps=90,
        changes={32: (5, False), 62: (1, True)},
        workers=1,
    )
    assert found["steps"] == 90
    assert len(found["phases"]) == 3
    assert all(rate > 0 for rate in found["phases"])
    assert found["told"]["workers"] == 1
    assert "imbalanced" not in found


def test_ranks_that_are_always_ready_are_measured_too(roots: dict[str, Path]) -> None:
    found = measure(roots, contender="ready", step_s=0.001, ranks=3)
    assert found["steps"] == 6
    assert 0 <= found["imbalanced"] <= 1


@pytest.mark.slow
def test_a_rank_that_fails_ends_the_run_and_says_why(roots: dict[str, Path]) -> None:
    with pytest.raises(RunFailed, match="nowhere"):
        measure(roots, pictures="/nowhere")
