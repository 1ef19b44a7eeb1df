"""What a configuration costs before it runs: parameters, memory, time, and the plans that fit a budget."""

from mtbert_lab.cost.dry_run import PARTS, step_timeline
from mtbert_lab.cost.forecast import predict_costs, predict_runs
from mtbert_lab.cost.parameters import compare_parameters
from mtbert_lab.cost.planner import describe, parse_memory, plan_table, read_candidates

__all__ = [
    "PARTS",
    "compare_parameters",
    "describe",
    "parse_memory",
    "plan_table",
    "predict_costs",
    "predict_runs",
    "read_candidates",
    "step_timeline",
]
