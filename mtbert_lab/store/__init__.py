"""The store of finished runs: `load_or_run`, comparisons with intervals, grids and sweeps."""

from mtbert_lab.store.baselines import BASELINES, baseline_table, best_threshold
from mtbert_lab.store.cache import cache_contents, clear_models
from mtbert_lab.store.compare import (
    difference,
    lent_to,
    overall_interval,
    scored,
    stack_predictions,
    summarize,
    training_key,
)
from mtbert_lab.store.doubts import doubts
from mtbert_lab.store.folders import MissingRun, Run, read_run, run_folder, stored_runs, write_table
from mtbert_lab.store.grids import read_grid, read_grids
from mtbert_lab.store.listing import find_run, list_runs
from mtbert_lab.store.loading import load_model
from mtbert_lab.store.models import CACHE_LIMIT, GB
from mtbert_lab.store.runs import data_root, forget, load_or_run
from mtbert_lab.sweep import SweepRun

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
