"""Machines that have their memory together and prepare for each other."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import OptionError
from headrace.planning.rendezvous import key_of, owners
from headrace.simulate import Costs, Simulation, make_result
from tests.simulate.helpers import Deliveries, check_uses, made

FREE = dict.fromkeys((field.name for field in msgspec.structs.fields(Costs)), 0.0)
EACH = 50_000


def clustered(
    machines: int = 3,
    *,
    share: float = 1.0,
    samples: int = 1200,
    tables: dict[str, Any] | None = None,
    **job: Any,
) -> Simulation:
    """A job on machines whose memory together holds a share of all samples, with an eighth to spare."""
    tables = tables or {}
    node = {
        "count": machines, "cpus": 4, "pool": int(1.125 * share * samples * EACH / machines) + 40 * EACH,
        "network": "1GB", "delay": 0.0001, **tables.pop("nodes", {}),
    }  # fmt: skip
    return made(
        [
            {"loader": "alone", "nodes": 0, "ranks": 2, "batch": 8, "epochs": 3, "sampling": "uniform",
             "workers": 1, "step": 0.02, **job},
        ],
        samples=samples,
        nodes=[node],
        data={"encoded": EACH},
        **{"storage": {"rate": "200MB", "latency": 0.002}, "measure": {"warmup": 0}, **tables},
    )  # fmt: skip


def stored(simulation: Simulation) -> float:
    return sum(node.reads.stored for node in simulation.nodes)


@settings(max_examples=40, deadline=None)
@given(
    machines=st.integers(1, 4),
    ranks=st.integers(1, 2),
    share=st.sampled_from([0.05, 0.4, 1.0]),
    helpers=st.integers(0, 2),
    cpus=st.integers(1, 3),
    ahead=st.sampled_from([0, 5]),
    loader=st.sampled_from(["alone", "shared", "plain"]),
    placement=st.sampled_from(["rendezvous", "own"]),
    peers=st.sampled_from(["measured", "always"]),
    switches=st.tuples(st.booleans(), st.booleans()),
)
def test_every_sample_comes_once_whatever_the_cluster_does(
    machines: int,
    ranks: int,
    share: float,
    helpers: int,
    cpus: int,
    ahead: int,
    loader: str,
    placement: str,
    peers: str,
    switches: tuple[bool, bool],
) -> None:
    rules = {"placement": placement, "peers": peers, "preload": switches[0], "pacing": switches[1]}
    simulation = clustered(
        machines,
        share=share,
        samples=300,
        ranks=ranks,
        ahead=ahead,
        loader=loader,
        step=0.0,
        tables={"nodes": {"cpus": cpus, "helpers": helpers if loader == "alone" else 0}, "cluster": rules},
    )
    given_ = Deliveries(simulation)
    simulation.run()
    assert given_.check(simulation) == 3
    check_uses(simulation)
    result = make_result(simulation)
    assert result.complete and 0 <= result.jobs[0].helped <= 1
    assert result.jobs[0].wait_p50 <= result.jobs[0].wait_p99
    for node in simulation.nodes:
        assert node.reads.found + node.reads.taken_over <= node.reads.asked
        assert node.out is not None
        assert node.out.used() <= node.out.capacity * simulation.clock.now * (1 + 1e-9)
    if placement == "rendezvous" and share == 1.0 and peers == "always":
        assert stored(simulation) == 300
    if machines == 1 or placement == "own":
        assert all(node.reads.taken_over == 0 for node in simulation.nodes)


def test_storage_is_read_once_by_all_machines() -> None:
    for preload in (False, True):
        simulation = clustered(4, tables={"cluster": {"preload": preload}})
        simulation.run()
        assert 1200 <= stored(simulation) <= 1.02 * 1200
        taken = sum(node.reads.taken_over for node in simulation.nodes)
        assert taken / sum(node.reads.asked for node in simulation.nodes) == pytest.approx(0.75, abs=0.04)
    apart = clustered(4, tables={"cluster": {"placement": "own"}})
    apart.run()
    assert stored(apart) > 2 * 1200


def test_what_there_is_no_room_for_is_read_once_an_epoch() -> None:
    simulation = clustered(3, share=0.5, tables={"cluster": {"peers": "always"}}, step=0.1)
    simulation.run()
    held = sum(int(1.125 * 600 / 3 + 40) * 15 / 16 for _ in range(3))
    least = 1200 + 2 * (1200 - held)
    # (what batches ahead had before the epoch began is read ahead again)
    assert least * 0.99 <= stored(simulation) <= 1.1 * least


def test_a_batch_takes_what_links_and_storage_take() -> None:
    """One batch of four samples at a time; some of them lie on another machine."""
    names = [key_of("node 0"), key_of("node 1")]
    there = int(np.count_nonzero(owners(np.arange(4), key_of("samples"), names, [1.0, 1.0])))
    assert 0 < there < 4
    rate, delay, latency = 1e6, 0.001, 0.003
    simulation = made(
        [{"loader": "alone", "batch": 4, "epochs": 3, "ahead": 1, "sampling": "uniform", "workers": 1}],
        samples=4,
        nodes=[{"count": 2, "cpus": 1, "pool": "10MB", "network": rate, "delay": delay}],
        data={"encoded": EACH},
        storage={"latency": latency},
        costs=FREE,
        cluster={"preload": False, "megabyte": 0.0},
        measure={"warmup": 0},
    )
    simulation.run()
    waits = [wait for _, wait in simulation.runs[0].ranks[0].waits]
    moved = there * EACH / rate
    answered = delay + latency + moved + delay
    assert answered < latency + (4 - there) * EACH / rate, (
        "the answer begins while the rank's own samples come"
    )
    # So its link has something to do from the first byte on.
    first = latency + 4 * EACH / rate
    assert waits == pytest.approx([first, 2 * delay + moved, 2 * delay + moved])
    # Its processors take as long again, at each end.
    simulation = made(
        [{"loader": "alone", "batch": 4, "epochs": 2, "ahead": 1, "sampling": "uniform", "workers": 1}],
        samples=4,
        nodes=[{"count": 2, "cpus": 1, "pool": "10MB", "delay": delay}],
        data={"encoded": EACH},
        costs=FREE,
        cluster={"preload": False, "megabyte": 0.1},
        measure={"warmup": 0},
    )
    simulation.run()
    waits = [wait for _, wait in simulation.runs[0].ranks[0].waits]
    assert waits[1] == pytest.approx(2 * delay + 2 * 0.1 * there * EACH / 1e6)


def starved(**cluster: Any) -> Simulation:
    """A rank with one processor, and three machines that have nothing to do."""
    node = {"pool": "60MB", "network": cluster.pop("network", "1GB"), "delay": 0.0001}
    return made(
        [{"loader": "alone", "batch": 32, "epochs": 3, "ahead": 6, "sampling": "uniform", "workers": 1}],
        samples=1000,
        nodes=[{**node, "cpus": 1}, {**node, "count": 3, "cpus": 2, "helpers": cluster.pop("helpers", 2)}],
        data={"encoded": EACH},
        cluster=cluster,
    )


def test_a_rank_without_processors_is_helped() -> None:
    rates = {}
    for helpers in (0, 2):
        simulation = starved(helpers=helpers)
        given_ = Deliveries(simulation)
        simulation.run()
        assert given_.check(simulation) == 3
        result = make_result(simulation)
        rates[helpers] = result.images_s
        assert (result.jobs[0].helped > 0.3) == (helpers > 0)
        assert result.jobs[0].delay_p50 <= result.jobs[0].delay_p99
    assert rates[2] > 1.4 * rates[0]


def test_pacing_shortens_the_queue_before_a_rank() -> None:
    delays = {}
    for pacing in (True, False):
        simulation = starved(pacing=pacing, helpers=16, network="100MB")
        simulation.run()
        delays[pacing] = make_result(simulation).jobs[0].delay_p99
    assert delays[True] <= delays[False]


@pytest.mark.slow
def test_helpers_take_nothing_from_their_own_machine() -> None:
    """Jobs that keep their machines busy are as fast as ever; what helpers do not get to is made at home."""
    rates = {}
    for helpers in (0, 4):
        job = {"loader": "alone", "batch": 32, "epochs": 3, "ahead": 6, "sampling": "uniform", "workers": 2}
        simulation = made(
            [{**job, "name": "poor", "workers": 1}, {**job, "name": "busy", "first": 1, "epochs": 0}],
            samples=1000,
            nodes=[
                {"cpus": 1, "pool": "60MB"},
                {"cpus": 2, "pool": "60MB", "helpers": helpers},
            ],
            data={"encoded": EACH},
        )
        simulation.run()
        result = make_result(simulation)
        rates[helpers] = result.jobs[1].images_s
        assert result.complete and result.jobs[0].helped < 0.2
    assert rates[4] > 0.97 * rates[0]


def test_a_slow_machine_is_left_for_storage_that_is_faster() -> None:
    rates, taken = {}, {}
    for peers in ("always", "measured"):
        node = {"pool": "40MB", "cpus": 4, "network": "1GB"}
        simulation = made(
            [{"loader": "alone", "batch": 32, "epochs": 4, "sampling": "uniform", "workers": 2}],
            samples=2000,
            nodes=[{**node, "count": 3}, {**node, "network": "3MB"}],
            data={"encoded": EACH},
            storage={"rate": "500MB", "latency": 0.002},
            cluster={"peers": peers},
            measure={"warmup": 2},
        )
        simulation.run()
        result = make_result(simulation)
        rates[peers], taken[peers] = result.images_s, sum(node.stored for node in result.nodes)
    assert rates["measured"] > 2 * rates["always"]
    assert taken["always"] == 0 < taken["measured"] < 0.35 * 2 * 2000


@pytest.mark.parametrize(
    ("change", "job", "said"),
    [
        ({"nodes": {"page_cache": "1MB"}}, {}, r"nodes\[0\]\.page_cache: samples come from the memory"),
        ({"nodes": {"helpers": 1}}, {"loader": "shared"}, r"nodes\[0\]\.helpers: here they prepare for jobs"),
        ({"nodes": {"helpers": 1}}, {"cache": "10%"}, r"nodes\[0\]\.helpers: here they prepare for jobs"),
        (
            {"nodes": {"helpers": 1, "pool": 0}},
            {},
            r"nodes\[0\]\.helpers: helpers read by way of the cluster",
        ),
        ({"nodes": {"pool": "lots"}}, {}, r"nodes\[0\]\.pool='lots' is not a size"),
        ({"nodes": {"delay": -1.0}}, {}, r"nodes\[0\]\.delay: expected float >= 0"),
        ({"cluster": {"placement": "best"}}, {}, r"cluster\.placement: invalid enum value 'best'"),
        ({"cluster": {"pace": True}}, {}, "cluster: there is no 'pace'; write one of placement, preload"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], job: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        clustered(tables=change, **job)
