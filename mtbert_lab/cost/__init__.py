"""What a configuration costs before it runs: parameters, memory, time, and the plans that fit a budget."""

from mtbert_lab.cost.dry_run import PARTS
from mtbert_lab.cost.forecast import predict_costs, predict_runs
from mtbert_lab.cost.memory import step_timeline
from mtbert_lab.cost.parameters import compare_parameters, parameter_table
from mtbert_lab.cost.planner import describe, parse_memory, plan_table, read_candidates, renew_measurements

__all__ = [
    "PARTS",
    "compare_parameters",
    "describe",
    "parameter_table",
    "parse_memory",
    "plan_table",
    "predict_costs",
    "predict_runs",
    "read_candidates",
    "renew_measurements",
    "step_timeline",
]
