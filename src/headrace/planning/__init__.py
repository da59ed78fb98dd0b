"""Decisions about resources: how the cache is split, how many processes and threads prepare. Pure."""

from headrace.planning.depth import deepen
from headrace.planning.measured import Means, Measured
from headrace.planning.orders import ahead_at_first, rows_per_order
from headrace.planning.planner import Planner
from headrace.planning.search import Plan, reconsider, search
from headrace.planning.split import split_budget
from headrace.planning.staff import Staff, staff
from headrace.planning.supply import Supply
from headrace.planning.terms import Terms

__all__ = [
    "Means",
    "Measured",
    "Plan",
    "Planner",
    "Staff",
    "Supply",
    "Terms",
    "ahead_at_first",
    "deepen",
    "reconsider",
    "rows_per_order",
    "search",
    "split_budget",
    "staff",
]
