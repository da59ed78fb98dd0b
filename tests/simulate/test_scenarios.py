"""Scenario files: what is wrong in them is named, with what to write instead."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from headrace.core.errors import MissingExtra, OptionError
from headrace.simulate import load_scenario, read_scenario, ready_scenarios

GOOD = """
[data]
samples = 100

[[jobs]]
epochs = 2
"""


def load(tmp_path: Path, text: str, *settings: str) -> object:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return load_scenario(str(path), settings)


def test_ready_scenarios_are_there() -> None:
    assert {"sharing", "staggered", "speeds", "overlap", "augmentations", "cluster"} <= set(ready_scenarios())
    for name in ready_scenarios():
        assert load_scenario(name).about


def test_the_cluster_is_as_large_as_promised() -> None:
    scenario = load_scenario("cluster")
    ranks = sum(job.count * job.ranks * len(scenario.span(job)) for job in scenario.jobs)
    assert (scenario.machines, ranks, scenario.data.samples) == (64, 512, 14_000_000)


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ("[data", (), "not TOML"),
        ("", (), "'data' is missing; write it"),
        (GOOD + "colour = 1", (), "jobs[0]: there is no 'colour'; write one of name, count"),
        ("colour = 1\n" + GOOD, (), "the scenario: there is no 'colour'; write one of data, jobs"),
        (GOOD, ("data.samples=0",), "data.samples: expected int >= 1"),
        (GOOD, ("jobs.batch=many",), "jobs[0].batch: expected int, got str"),
        (GOOD, ("jobs.sampling=best",), "jobs[0].sampling: 'best' is none; write one of opportunistic"),
        (GOOD, ("jobs.eviction=best",), "jobs[0].eviction: 'best' is none; write one of auto"),
        (GOOD, ("jobs.nodes=2",), "jobs[0].nodes: it does not fit; there are 1 machines"),
        (GOOD, ("nodes.count=2", "jobs.nodes=2"), 'write "uniform" for a job on several'),
        (GOOD, ("jobs.epochs=0",), "no job ever ends; write a number of epochs"),
        (GOOD, ("jobs.part=[0.5, 0.5]",), "jobs[0].part: it has no samples"),
        (GOOD, ("jobs.after=1.0",), "there is no job before the first"),
        (GOOD, ("jobs.loader=plain",), "jobs[0].workers: a plain loader has as many as it is told"),
        (GOOD, ("jobs.split=[0.0, 0.0, 0.0]",), "not all zero"),
        (GOOD, ("jobs.drop_last=true", "jobs.batch=500"), "no whole batch"),
        (GOOD, ("data.mix=[[0.5, 1.0]]",), "data.mix: the shares are 0.5 together; write 1 in all"),
        (GOOD, ("nodes.cache=lots",), "nodes[0].cache='lots' is not a size; write bytes, '8GiB'"),
        (
            GOOD,
            ("storage.rate=0",),
            'storage.rate: it must be more than 0; write bytes per second, e.g. "2GB"',
        ),
        (GOOD, ("nodes.network=0",), "nodes[0].network: it must be more than 0"),
        (GOOD, ("jobs.1.batch=2",), "there are 1 of these tables"),
        (GOOD, ("data.samples.more=2",), "leads into a value"),
        (GOOD, ("batch",), "sets nothing; write key=value"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(OptionError) as caught:
        load(tmp_path, text, *settings)
    assert said in str(caught.value)


def test_a_scenario_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(OptionError, match=r"there is no scenario 'sharin'.*one of .*sharing"):
        load_scenario("sharin")


def test_settings_reach_all_tables_or_one() -> None:
    scenario = load_scenario(
        "speeds", ["jobs.batch=32", "jobs.1.batch=16", "nodes.cpus=8", "costs.decode=0.5"]
    )
    assert [job.batch for job in scenario.jobs] == [32, 16, 32]
    assert scenario.nodes[0].cpus == 8 and scenario.costs.decode == 0.5
    plain = read_scenario({"data": {"samples": 10}, "jobs": [{}]})
    assert plain.machines == 1


def test_sizes_as_people_write_them() -> None:
    scenario = load_scenario("sharing", ["nodes.cache=25%", "data.decoded=1MB", "nodes.network=1GB"])
    assert scenario.cache_of(scenario.nodes[0]) == 1_000_000_000
    assert scenario.rate(scenario.nodes[0].network, "x") == 1e9


def test_yaml_if_it_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("data: {samples: 100}\njobs: [{epochs: 2}]\n")
    if importlib.util.find_spec("yaml") is None:
        with pytest.raises(MissingExtra, match=r"PyYAML.*headrace\[yaml\]"):
            load_scenario(str(path))
    else:
        assert load_scenario(str(path)).data.samples == 100
