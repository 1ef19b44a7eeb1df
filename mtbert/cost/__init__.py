"""What a configuration costs before it runs: parameters, memory, time, and the plans that fit a budget."""

from mtbert.cost.dry_run import PARTS
from mtbert.cost.forecast import predict_runs
from mtbert.cost.memory import step_timeline
from mtbert.cost.parameters import compare_parameters, parameter_table
from mtbert.cost.planner import describe, parse_memory, plan_table, read_candidates, renew_measurements
from mtbert.cost.time import Speeds

__all__ = [
    "PARTS",
    "Speeds",
    "compare_parameters",
    "describe",
    "parameter_table",
    "parse_memory",
    "plan_table",
    "predict_runs",
    "read_candidates",
    "renew_measurements",
    "step_timeline",
]
