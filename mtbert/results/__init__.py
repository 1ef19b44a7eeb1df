"""The store of finished runs: `load_or_run`, comparisons with intervals, grids and sweeps."""

from mtbert.results.baselines import BASELINES, baseline_table, best_threshold
from mtbert.results.cache import cache_contents, clear_models
from mtbert.results.compare import (
    difference,
    lent_to,
    overall_interval,
    scored,
    stack_predictions,
    summarize,
    training_key,
)
from mtbert.results.doubts import doubts
from mtbert.results.grids import read_grid, read_grids
from mtbert.results.listing import find_run, list_runs
from mtbert.results.loading import load_model
from mtbert.results.models import CACHE_LIMIT, GB
from mtbert.results.runs import data_root, forget, load_or_run
from mtbert.results.store import MissingRun, Run, read_run, run_folder, stored_runs, write_table
from mtbert.results.sweep import SweepRun

__all__ = [
    "BASELINES",
    "CACHE_LIMIT",
    "GB",
    "MissingRun",
    "Run",
    "SweepRun",
    "baseline_table",
    "best_threshold",
    "cache_contents",
    "clear_models",
    "data_root",
    "difference",
    "doubts",
    "find_run",
    "forget",
    "lent_to",
    "list_runs",
    "load_model",
    "load_or_run",
    "overall_interval",
    "read_grid",
    "read_grids",
    "read_run",
    "run_folder",
    "scored",
    "stack_predictions",
    "stored_runs",
    "summarize",
    "training_key",
    "write_table",
]
