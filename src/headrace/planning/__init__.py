"""Decisions about resources: how the cache is split, how many processes and threads prepare. Pure."""

from headrace.planning.advice import Advice, advise, curve
from headrace.planning.ahead import Ahead, most_ahead_of_need
from headrace.planning.bridge import Bridge
from headrace.planning.depth import Depth, deepen
from headrace.planning.disk import decoded_share
from headrace.planning.idling import IdlePause, fetched_ahead
from headrace.planning.measured import Means, Measured, Spent
from headrace.planning.orders import (
    ahead_at_first,
    most_ahead,
    rows_among,
    rows_among_now,
    rows_per_order,
    rows_worth_while,
)
from headrace.planning.placement import CpuSets, Ranks, cpu_sets
from headrace.planning.planner import LOOK_EVERY, Planner
from headrace.planning.remedies import Curve, Remedy
from headrace.planning.search import Plan, reconsider, search
from headrace.planning.situation import Situation
from headrace.planning.split import split_budget
from headrace.planning.staff import Staff, staff
from headrace.planning.supply import Supply
from headrace.planning.terms import Terms

__all__ = [
    "LOOK_EVERY",
    "Advice",
    "Ahead",
    "Bridge",
    "CpuSets",
    "Curve",
    "Depth",
    "IdlePause",
    "Means",
    "Measured",
    "Plan",
    "Planner",
    "Ranks",
    "Remedy",
    "Situation",
    "Spent",
    "Staff",
    "Supply",
    "Terms",
    "advise",
    "ahead_at_first",
    "cpu_sets",
    "curve",
    "decoded_share",
    "deepen",
    "fetched_ahead",
    "most_ahead",
    "most_ahead_of_need",
    "reconsider",
    "rows_among",
    "rows_among_now",
    "rows_per_order",
    "rows_worth_while",
    "search",
    "split_budget",
    "staff",
]
