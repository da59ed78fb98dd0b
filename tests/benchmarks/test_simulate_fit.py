"""Costs that are fitted to measurements: those that the measurements were made from, as far as these tell."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from benchmarks.simulate.bench import case_table, errors_by_group
from benchmarks.simulate.fit import GUESSES, Equation, fit, nearest
from hypothesis import given
from hypothesis import strategies as st

from headrace.simulate import Costs, read_scenario, simulate

NAMES = list(GUESSES)
FACTORS = st.lists(st.floats(0.2, 5.0), min_size=len(NAMES), max_size=len(NAMES))
OFTEN = st.lists(st.floats(0.0, 1.0), min_size=len(NAMES), max_size=len(NAMES))


def known(factors: list[float]) -> dict[str, float]:
    """Costs that are not what is guessed."""
    return {name: GUESSES[name] * factor for name, factor in zip(NAMES, factors, strict=True)}


def measure(paid: dict[str, float], costs: dict[str, float]) -> Equation:
    return Equation(paid, sum(often * costs[name] for name, often in paid.items()))


@given(FACTORS, st.lists(OFTEN, min_size=len(NAMES), max_size=len(NAMES)))
def test_enough_cases_give_back_all_costs(factors: list[float], small: list[list[float]]) -> None:
    costs = known(factors)
    cases = []
    for main, often in zip(NAMES, small, strict=True):
        # Each case has one cost that most of its time goes to.
        paid = {name: 0.02 * part / GUESSES[name] for name, part in zip(NAMES, often, strict=True)}
        cases.append(measure({**paid, main: 1 / GUESSES[main]}, costs))
    found = fit(cases)
    for name in NAMES:
        assert getattr(found, name) == pytest.approx(costs[name], rel=0.01)


@given(
    FACTORS,
    st.lists(OFTEN.filter(any), min_size=1, max_size=5),
    st.lists(st.floats(0, 1), min_size=5, max_size=5),
)
def test_few_cases_explain_what_is_made_up_of_them(
    factors: list[float], some: list[list[float]], shares: list[float]
) -> None:
    costs = known(factors)
    cases = [
        {name: (part + 1e-3) / GUESSES[name] for name, part in zip(NAMES, often, strict=True)}
        for often in some
    ]
    found = fit([measure(paid, costs) for paid in cases])
    mixed = {
        name: sum((share + 0.01) * paid[name] for share, paid in zip(shares, cases, strict=False))
        for name in NAMES
    }
    for paid in (*cases, mixed):
        foretold = sum(often * getattr(found, name) for name, often in paid.items())
        assert foretold == pytest.approx(measure(paid, costs).cpu_s, rel=0.03)


def test_what_nobody_paid_stays_a_guess_and_noise_as_it_is() -> None:
    found = fit([Equation({"decode": 1.0}, 0.004)])
    assert found.decode == pytest.approx(0.004, rel=1e-3)
    for name in NAMES:
        assert name == "decode" or getattr(found, name) == pytest.approx(GUESSES[name])
    assert found.noise == Costs().noise


def test_every_cost_is_fitted() -> None:
    assert {*NAMES, "noise"} == {field.name for field in msgspec.structs.fields(Costs)}


def test_the_noise_with_the_nearest_rates() -> None:
    assert nearest({0.0: [(110, 100), (100, 100)], 0.1: [(103, 100), (98, 100)], 0.2: [(80, 100)]}) == 0.1


def run(job: dict[str, Any]) -> Equation:
    """What would be measured of a machine that has the simulator's own costs."""
    document = {
        "data": {"samples": 600},
        "nodes": [{"cpus": 2, "cache": "20%"}],
        "jobs": [{"epochs": 4, **job}],
        "costs": {"noise": 0.0},
        "seed": 1,
    }
    found = simulate(read_scenario(document))
    paid = {name: often / found.images for name, often in found.paid.items()}
    return Equation(paid, found.cpu_s_per_1000 / 1000)


def test_costs_fitted_to_one_and_two_jobs_foretell_more() -> None:
    fitted: list[dict[str, Any]] = [
        {"loader": "alone"},
        {"count": 1},
        {"sampling": "uniform"},
        {"count": 2},
        {"count": 2, "sampling": "opportunistic"},
    ]
    costs = fit([run(job) for job in fitted])
    for held_out in (
        {"count": 4},
        {"count": 3, "sampling": "opportunistic"},
        {"count": 3, "sampling": "dependent"},
    ):
        case = run(held_out)
        foretold = sum(often * getattr(costs, name) for name, often in case.paid.items())
        assert foretold == pytest.approx(case.cpu_s, rel=0.05), held_out


def test_only_cases_that_were_held_out_have_targets() -> None:
    def row(name: str, fitted: bool, off: float) -> dict[str, Any]:
        numbers = {"decodes_per_sample": 1.0, "hit_rate": 0.5, "speed": 2.0, "cpu_s_per_1000": 0.1}
        errors = dict.fromkeys(numbers, off)
        return {"name": name, "fitted": fitted, "measured": numbers, "simulated": numbers, "errors": errors}

    rows = [
        row("headrace-auto@1", True, 0.5),
        row("headrace-auto@4", False, 0.02),
        row("headrace@1", True, 0.9),
    ]
    targets = errors_by_group(rows)
    assert len(targets) == 3 and all(target.met and target.value == 0.02 for target in targets)
    assert errors_by_group([row("headrace-auto@8", False, -0.2)])[0].met is False
    lines = case_table(rows).splitlines()
    assert [line.split()[1] for line in lines[2:]] == ["fitted", "held", "fitted"]
    assert math.isclose(float(lines[3].split()[3]), 1.0)
