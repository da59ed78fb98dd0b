"""How the threads of a node are divided: between ranks, and between fetching and preparing. Pure."""

from headrace.planning.threads.controller import Budget, Decision, Node, RankNeeds, StaffController
from headrace.planning.threads.divide import least_largest, least_threads, proportional, straggler_aware
from headrace.planning.threads.learned_curve import LearnedCurve
from headrace.planning.threads.loading_time import Level, LoadingTime, PerLevel
from headrace.planning.threads.piecewise import Piecewise, Point, fit
from headrace.planning.threads.preparing_model import PreparingModel, size_class
from headrace.planning.threads.worker_count import CompletionTimes, Lead, batches_ahead, wanted

__all__ = [
    "Budget",
    "CompletionTimes",
    "Decision",
    "Lead",
    "LearnedCurve",
    "Level",
    "LoadingTime",
    "Node",
    "PerLevel",
    "Piecewise",
    "Point",
    "PreparingModel",
    "RankNeeds",
    "StaffController",
    "batches_ahead",
    "fit",
    "least_largest",
    "least_threads",
    "proportional",
    "size_class",
    "straggler_aware",
    "wanted",
]
