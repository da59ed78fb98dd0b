"""Workers of a real loader on made-up machines, and what a rank knows of its GPU."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

import headrace as hr
from headrace.cluster import rails
from headrace.core import topology
from headrace.engine import worker
from headrace.engine.task import RecipeTask
from headrace.engine.worker import Settled
from headrace.loader import placing
from headrace.planning import Ranks
from tests.machines import EIGHT, EXPANDED, FOUR, ONE, ONE_ROOT, RAILS, TWO, Machine, made_up_cuda, write

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_LOCALID", "SLURM_CPUS_PER_TASK")


@pytest.fixture(autouse=True)
def _said_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "SLURM_NTASKS_PER_NODE", "HEADRACE_AFFINITY"):
        monkeypatch.delenv(name, raising=False)


# -- workers -------------------------------------------------------------------------------------------------


class Whereabouts(IterableDataset[Any]):
    """A sample of each worker, which says on which CPUs and with how many threads of torch's it was made."""

    def __iter__(self) -> Any:
        yield tuple(sorted(os.sched_getaffinity(0))), torch.get_num_threads()


def halves() -> list[tuple[int, ...]]:
    """The CPUs of this process in two parts, each of which may be a memory node."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    return [tuple(cpus[: len(cpus) // 2]), tuple(cpus[len(cpus) // 2 :])]


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """This machine has two memory nodes, as far as headrace knows."""
    found = halves()
    monkeypatch.setattr(topology, "SYS", Machine(dict(enumerate(found))).build(tmp_path))
    return found


def whereabouts(**options: Any) -> list[tuple[int, ...]]:
    """The CPUs of each of two workers."""
    with hr.DataLoader(
        Whereabouts(), batch_size=1, collate_fn=list, num_workers=2, multiprocessing_context="fork", **options
    ) as loader:
        samples = [sample for batch in loader for sample in batch]
    assert [threads for _, threads in samples] == [1, 1]
    return [cpus for cpus, _ in samples]


def test_workers_are_divided_between_memory_nodes(two_nodes: list[tuple[int, ...]]) -> None:
    before = os.sched_getaffinity(0)
    assert sorted(set(whereabouts())) == two_nodes
    assert os.sched_getaffinity(0) == before  # the training process goes where it likes


def test_a_rank_has_its_own_memory_node(
    two_nodes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert whereabouts() == [two_nodes[1]] * 2


@pytest.mark.parametrize("value", ["0", "no"])
def test_it_can_be_switched_off(
    two_nodes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("HEADRACE_AFFINITY", value)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert whereabouts() == [(*two_nodes[0], *two_nodes[1])] * 2


def test_what_a_user_does_in_a_worker_counts_more(two_nodes: list[tuple[int, ...]]) -> None:
    cpus = two_nodes[0][:1]
    assert whereabouts(worker_init_fn=lambda _: os.sched_setaffinity(0, cpus)) == [cpus] * 2


def test_a_recipe_s_workers_are_placed_too(
    two_nodes: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")

    def where(_: Any) -> Any:
        return torch.tensor(sorted(os.sched_getaffinity(0))[:1])

    recipe = hr.Recipe(hr.synthetic.source(16), hr.synthetic.decode(), [where])
    with hr.DataLoader(recipe, batch_size=4, num_workers=2, rank=0, world_size=1) as loader:
        batches = [batch[0] for batch in loader]
    assert {int(cpu) for batch in batches for cpu in batch.flatten()} == {two_nodes[1][0]}


def test_each_worker_has_a_memory_node(two_nodes: list[tuple[int, ...]]) -> None:
    task = placing.settled(task_like(), 2)
    assert isinstance(task, Settled)
    assert [tuple(sorted(cpus)) for cpus in task.cpus] == two_nodes


# -- ranks ---------------------------------------------------------------------------------------------------


def task_like(kind: type = object) -> Any:
    return kind.__new__(kind)


@pytest.fixture
def settle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a machine the one that a rank runs on; returns what its workers get, each by its memory node."""

    built: dict[str, Machine] = {}

    def begin(
        machine: Machine,
        workers: int,
        usable: frozenset[int] | None = None,
        kind: type = object,
        **variables: object,
    ) -> list[int] | None:
        placing._nodes.cache_clear()
        root = str(tmp_path)
        if machine is not built.get("machine"):
            built["machine"] = machine
            machine.build(tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: machine.usable if usable is None else usable)
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        task = task_like(kind)
        found = placing.settled(task, workers, root)
        if found is task:
            return None
        assert isinstance(found, Settled) and found.task is task
        nodes = {cpu: number for number, cpus in machine.nodes.items() for cpu in cpus}
        return [nodes[min(cpus)] for cpus in found.cpus]

    yield begin
    placing._nodes.cache_clear()


def test_one_memory_node_is_left_alone(settle: Any) -> None:
    assert settle(ONE, 16) is None


def test_a_rank_that_is_bound_is_left_alone(settle: Any) -> None:
    assert settle(TWO, 8, frozenset(range(28, 36))) is None  # not all of the container
    assert settle(TWO, 8) == [0, 1] * 4


def test_a_container_with_part_of_the_machine(settle: Any, tmp_path: Path) -> None:
    usable = frozenset([*range(32), *range(32, 48)])
    write(tmp_path / "fs/cgroup/cpuset.cpus.effective", "0-47")
    assert Counter(settle(TWO, 48, usable)) == {0: 32, 1: 16}
    # Slurm's for one rank alone
    assert settle(TWO, 48, usable, SLURM_CPUS_PER_TASK=48) is None


def test_ranks_that_slurm_gave_the_whole_machine(settle: Any) -> None:
    said = {"SLURM_CPUS_PER_TASK": 128, "SLURM_LOCALID": 0, "LOCAL_RANK": 5, "LOCAL_WORLD_SIZE": 8}
    assert settle(TWO, 16, WORLD_SIZE=16, RANK=13, **said) == [1] * 16


def test_a_rank_whose_number_on_this_machine_is_not_said(settle: Any) -> None:
    assert settle(FOUR, 4, WORLD_SIZE=8, RANK=6, LOCAL_WORLD_SIZE=4) == [2] * 4


def test_ranks_that_make_no_sense(settle: Any) -> None:
    assert settle(FOUR, 4, WORLD_SIZE="many", RANK=6) == [0, 1, 2, 3]
    assert settle(FOUR, 4, WORLD_SIZE=2, RANK=0, LOCAL_RANK=99) is not None


def test_threads_that_workers_may_get_take_room(settle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch, TWO, current=4)
    monkeypatch.setattr(placing, "cpus_per_rank", lambda: 128)
    assert settle(TWO, 32) == [1] * 32
    assert settle(TWO, 32, kind=RecipeTask) == [1] * 16 + [0] * 16


# -- GPUs ----------------------------------------------------------------------------------------------------


def cuda(
    monkeypatch: pytest.MonkeyPatch,
    machine: Machine,
    *,
    current: int = 0,
    visible: range = range(8),
    used: frozenset[int] = frozenset(),
) -> Any:
    """torch.cuda as a rank would see it."""
    made = made_up_cuda(machine, current=current, visible=visible, used=used)
    monkeypatch.setattr(torch, "cuda", made)
    return made


@pytest.mark.parametrize("rank", range(8))
@pytest.mark.parametrize("chosen", ["current", "default", "used"])
def test_a_rank_is_at_its_gpu(settle: Any, monkeypatch: pytest.MonkeyPatch, rank: int, chosen: str) -> None:
    """Whether it told torch which is its own, has not used any yet, or names it in every call."""
    used = frozenset({rank}) if chosen == "used" else frozenset[int]()
    cuda(monkeypatch, TWO, current=rank if chosen == "current" else 0, used=used)
    found = settle(TWO, 16, WORLD_SIZE=8, RANK=rank, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=8)
    assert found == [rank // 4] * 16


def test_a_rank_that_sees_one_gpu(settle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one for each rank of the job, it is known how many are where."""
    cuda(monkeypatch, TWO, visible=range(6, 7))
    assert settle(TWO, 16, WORLD_SIZE=8, RANK=2, LOCAL_WORLD_SIZE=8) == [1] * 16
    assert placing._ranks(topology.SYS) == Ranks(8, 2, (None, None, None))


def test_a_rank_that_does_not_know_of_the_others(settle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch, TWO, visible=range(6, 7))
    assert settle(TWO, 32, WORLD_SIZE=4, RANK=2, LOCAL_WORLD_SIZE=4) == [1] * 16 + [0] * 16


def test_some_gpus_of_the_machine(settle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch, TWO, current=1, visible=range(4, 8))
    assert settle(TWO, 32, WORLD_SIZE=4, RANK=1, LOCAL_WORLD_SIZE=4) == [1] * 16 + [0] * 16
    cuda(monkeypatch, TWO, current=1, visible=range(3, 5))
    assert settle(TWO, 64, WORLD_SIZE=2, RANK=1, LOCAL_WORLD_SIZE=2) == [1] * 64


def test_a_rank_that_chose_in_its_own_way(settle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch, TWO, current=7)
    assert settle(TWO, 16, WORLD_SIZE=8, RANK=1, LOCAL_WORLD_SIZE=8) == [1] * 16


def test_all_gpus_at_one_memory_node(settle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(8):
        cuda(monkeypatch, ONE_ROOT, current=rank)
        found = settle(ONE_ROOT, 16, WORLD_SIZE=8, RANK=rank, LOCAL_WORLD_SIZE=8)
        assert found == [0] * 8 + [1] * 8


def test_what_does_not_fit_stays_near(settle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch, EIGHT, current=7)
    found = settle(EIGHT, 32, WORLD_SIZE=8, RANK=7, LOCAL_WORLD_SIZE=8)
    assert found == [5] * 16 + [6] * 16


def test_one_rank_of_one(settle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda(monkeypatch, TWO, current=0, used=frozenset({5}))
    assert settle(TWO, 8) == [1] * 8
    cuda(monkeypatch, TWO, current=2, used=frozenset({5, 6}))
    assert settle(TWO, 8) == [0] * 8


def test_a_gpu_known_by_the_cpus_next_to_it(
    settle: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(TWO.nodes, devices={"0000:14:00.0": (-1, ("0x030200", "0x10de"))})
    cuda(monkeypatch, machine, visible=range(1))
    assert settle(machine, 8) == [0, 1] * 4  # all of them are
    write(tmp_path / "bus/pci/devices/0000:14:00.0/local_cpulist", "32-40")
    assert settle(machine, 8) == [1] * 8


def test_torch_that_is_too_old_or_broken(settle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cuda(monkeypatch, TWO, current=4)
    made.get_device_properties = lambda _: SimpleNamespace(name="GPU")
    assert settle(TWO, 8) == [0, 1] * 4

    def fails(*_: int) -> int:
        raise RuntimeError("CUDA error: device is lost")

    for name in ("get_device_properties", "memory_allocated", "current_device", "device_count"):
        made = cuda(monkeypatch, TWO, current=4)
        setattr(made, name, fails)
        assert settle(TWO, 8) == [0, 1] * 4


def test_cuda_is_not_woken(settle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Asleep:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return lambda *_: 0

    monkeypatch.setattr(torch, "cuda", Asleep())
    assert settle(EXPANDED, 4) == [0, 1, 0, 1]
    assert asked == ["is_initialized"]


# -- network interfaces --------------------------------------------------------------------------------------


@pytest.fixture
def railed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tree of a machine with four rails, each of which has an address."""
    monkeypatch.setattr(rails, "address_of", lambda name: f"10.{ord(name[-1]) - ord('0')}.0.7/24")
    placing._nodes.cache_clear()
    return RAILS.build(tmp_path)


def test_each_rank_has_the_rail_at_its_gpu(railed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert placing.find_rail(railed) is None  # nobody uses a GPU
    monkeypatch.setenv("WORLD_SIZE", "8")
    for rank in range(8):
        cuda(monkeypatch, RAILS, current=rank)
        monkeypatch.setenv("RANK", str(rank))
        found = placing.find_rail(railed)
        assert found is not None
        assert (found.address, found.cpus) == (f"10.{rank // 2}.0.7/24", set(RAILS.nodes[rank // 4]))
    monkeypatch.setenv("HEADRACE_RAILS", "0")
    assert placing.find_rail(railed) is None


def test_an_agent_keeps_to_the_cpus_at_its_rail(railed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: RAILS.usable)
    kept: list[frozenset[int]] = []
    monkeypatch.setattr(worker, "keep_to", kept.append)
    cuda(monkeypatch, RAILS, current=6)
    task = task_like(RecipeTask)
    task.agent = lambda *_: None
    # (with more workers than fit at its memory node, the last one is elsewhere)
    found = placing.settled(task, 128, railed)
    assert isinstance(found, Settled)
    for number in (0, 127, worker.AGENT):
        found.settle(number)
    assert kept == [set(RAILS.nodes[1]), set(RAILS.nodes[0]), set(RAILS.nodes[1])]
    task.agent = None
    found = placing.settled(task, 128, railed)
    assert isinstance(found, Settled) and not found.agent
    monkeypatch.setenv("HEADRACE_AFFINITY", "0")
    assert placing.settled(task, 128, railed) is task
