"""Decisions about resources: how the cache is split, how many processes and threads prepare. Pure."""

from headrace.planning.depth import deepen
from headrace.planning.orders import ahead_at_first, rows_per_order
from headrace.planning.split import split_budget
from headrace.planning.staff import Staff, staff

__all__ = ["Staff", "ahead_at_first", "deepen", "rows_per_order", "split_budget", "staff"]
