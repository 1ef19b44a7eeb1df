"""From CSV files and JSON Lines to token ids: the course's tasks and one's own, checked tables, the demo corpus."""

from mtbert.data.array_cache import MappedArray, cached_arrays, mapped_array, sealed_arrays
from mtbert.data.corpus import Corpus, warn_once
from mtbert.data.pos_tags import TAGS, PosError, pos_features
from mtbert.data.reports import class_counts, empty_classes, fault_of, remarks_on_range
from mtbert.data.rows import UNDECODED
from mtbert.data.tables import GET_DATA, load_split_texts, load_table, load_texts
from mtbert.data.tasks import COURSE, SPLITS, TASKS, DataError, Task, changed_tasks, unknown_task
from mtbert.data.tokens import FlatSequences, TokenizedTable, load_tokenizer, tokenize, tokenize_texts

__all__ = [
    "COURSE",
    "GET_DATA",
    "SPLITS",
    "TAGS",
    "TASKS",
    "UNDECODED",
    "Corpus",
    "DataError",
    "FlatSequences",
    "MappedArray",
    "PosError",
    "Task",
    "TokenizedTable",
    "cached_arrays",
    "changed_tasks",
    "class_counts",
    "empty_classes",
    "fault_of",
    "load_split_texts",
    "load_table",
    "load_texts",
    "load_tokenizer",
    "mapped_array",
    "pos_features",
    "remarks_on_range",
    "sealed_arrays",
    "tokenize",
    "tokenize_texts",
    "unknown_task",
    "warn_once",
]
