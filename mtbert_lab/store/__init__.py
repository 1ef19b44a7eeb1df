"""The store of finished runs: `load_or_run`, comparisons with intervals, grids."""

from mtbert_lab.store.compare import (
    difference,
    overall_interval,
    seeds_of_configurations,
    stack_predictions,
    summarize,
    training_key,
)
from mtbert_lab.store.corpora import Corpora, NoCourseData, data_root, read_corpus, run_id_of
from mtbert_lab.store.derived import cached_table, dev_table
from mtbert_lab.store.folders import read_run, run_folder, stored_runs
from mtbert_lab.store.grids import read_grid, read_grids
from mtbert_lab.store.listing import find_run, list_runs
from mtbert_lab.store.loading import load_model
from mtbert_lab.store.models import CACHE_LIMIT, GB
from mtbert_lab.store.removal import cache_contents, clear_models, forget, remove_unused
from mtbert_lab.store.run import MissingRun, Run
from mtbert_lab.store.runs import (
    REPAIR,
    RUN_SIZE,
    Seeds,
    Training,
    is_done,
    load_or_run,
    of_one_version,
    score_table,
    stored_seeds,
    teacher_outputs,
)
from mtbert_lab.store.tables import update_tables, write_table

__all__ = [
    "CACHE_LIMIT",
    "GB",
    "REPAIR",
    "RUN_SIZE",
    "Corpora",
    "MissingRun",
    "NoCourseData",
    "Run",
    "Seeds",
    "Training",
    "cache_contents",
    "cached_table",
    "clear_models",
    "data_root",
    "dev_table",
    "difference",
    "find_run",
    "forget",
    "is_done",
    "list_runs",
    "load_model",
    "load_or_run",
    "of_one_version",
    "overall_interval",
    "read_corpus",
    "read_grid",
    "read_grids",
    "read_run",
    "remove_unused",
    "run_folder",
    "run_id_of",
    "score_table",
    "seeds_of_configurations",
    "stack_predictions",
    "stored_runs",
    "stored_seeds",
    "summarize",
    "teacher_outputs",
    "training_key",
    "update_tables",
    "write_table",
]
