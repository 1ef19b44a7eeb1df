"""What a configuration costs before it runs: parameters, memory, time, and the plans that fit a budget."""

from mtbert.cost.dry_run import PARTS, DryRun, Shapes
from mtbert.cost.forecast import Forecast, Lengths, predict_runs, read_lengths
from mtbert.cost.memory import at_peak, step_timeline
from mtbert.cost.parameters import compare_parameters, count_parameters, parameter_table
from mtbert.cost.planner import (
    BudgetError,
    check_minutes,
    describe,
    parse_memory,
    plan_table,
    read_candidates,
    renew_measurements,
)
from mtbert.cost.time import Calibration, load_or_calibrate

__all__ = [
    "PARTS",
    "BudgetError",
    "Calibration",
    "DryRun",
    "Forecast",
    "Lengths",
    "Shapes",
    "at_peak",
    "check_minutes",
    "compare_parameters",
    "count_parameters",
    "describe",
    "load_or_calibrate",
    "parameter_table",
    "parse_memory",
    "plan_table",
    "predict_runs",
    "read_candidates",
    "read_lengths",
    "renew_measurements",
    "step_timeline",
]
