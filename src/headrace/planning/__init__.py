"""Decisions about resources: how the cache is split, how many processes and threads prepare. Pure."""

from headrace.planning.depth import deepen
from headrace.planning.split import split_budget
from headrace.planning.staff import Staff, staff

__all__ = ["Staff", "deepen", "split_budget", "staff"]
