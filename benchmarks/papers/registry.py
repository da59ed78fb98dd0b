"""All experiments, in the order in which they are shown."""

from __future__ import annotations

from benchmarks.papers import (
    cluster_rules,
    dlcache_figure7,
    joader_figure6,
    joader_figure7,
    joader_sampling,
    joader_table1,
    kspeed_figure13,
    lobster_ablation,
    lobster_hits,
    lobster_imbalance,
    lobster_peers,
    seneca_figure8,
    seneca_figure13,
    seneca_figure14,
)
from benchmarks.papers.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        seneca_figure8,
        seneca_figure13,
        seneca_figure14,
        joader_table1,
        joader_figure6,
        joader_figure7,
        joader_sampling,
        lobster_imbalance,
        lobster_hits,
        lobster_peers,
        lobster_ablation,
        dlcache_figure7,
        kspeed_figure13,
        cluster_rules,
    )
}
