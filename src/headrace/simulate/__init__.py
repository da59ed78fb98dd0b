"""The data plane on a virtual clock: what jobs, machines, links and caches would come to, before they are there.

Draws, orders, admission and eviction are decided by the product's own code; only what takes time is made up.
"""

from headrace.simulate.files import load_scenario, read_scenario, ready_scenarios
from headrace.simulate.report import make_result
from headrace.simulate.results import JobResult, NodeResult, Point, Result
from headrace.simulate.scenario import Cluster, Costs, Data, Job, Measure, Nodes, Scenario, Storage
from headrace.simulate.simulation import Simulation


def simulate(scenario: Scenario) -> Result:
    """Run a scenario to its end. Raises OptionError if it cannot be run."""
    simulation = Simulation(scenario)
    simulation.run()
    return make_result(simulation)


__all__ = [
    "Cluster",
    "Costs",
    "Data",
    "Job",
    "JobResult",
    "Measure",
    "NodeResult",
    "Nodes",
    "Point",
    "Result",
    "Scenario",
    "Simulation",
    "Storage",
    "load_scenario",
    "make_result",
    "read_scenario",
    "ready_scenarios",
    "simulate",
]
