"""What teachers predict for the training examples of their students. It is computed once and kept in the store.

results/teachers/<run id of the teacher>/<task>-<data>.npz   its logits for all rows of a training table, float16

<data> is the digest of the student's tables, as in its run id. With these files a student needs no model of its
teachers, and it learns from the same numbers on every machine. Each file ends with a seal.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy import ndarray
from torch import Tensor

from mtbert.bert import CheckpointError
from mtbert.config import RunConfig
from mtbert.data import TASKS, Corpus, sealed_arrays
from mtbert.files import is_sealed
from mtbert.multitask import MultitaskBert
from mtbert.training import mean_logits, prepare_task
from mtbert_lab.paths import OTHER_FOLDERS
from mtbert_lab.store.models import model_folder, run_lock

TEACHERS = "teachers"  # of a store


@dataclass(frozen=True)
class TeacherOutputs:
    """The outputs of a student's teachers in some stores, the first of which is written to."""

    student: RunConfig
    data: str  # the digest of the student's tables
    run_ids: dict[RunConfig, str]  # of its teachers
    among: Sequence[Path]

    def missing(self) -> list[RunConfig]:
        """The teachers whose models are needed, because no store has all their outputs."""
        return [teacher for teacher in self.run_ids if not all(map(is_sealed, self._files(teacher).values()))]

    def mean_logits(self, corpus: Corpus, device: torch.device) -> dict[str, Tensor]:
        """Task -> mean logits of its teachers for all rows of its training table.

        Outputs that no store has are computed with the teachers' models, from the cache, by one process while the
        others wait. Students of different seeds begin with different teachers, so that processes side by side compute
        different outputs.
        """
        missing = self.missing()
        teachers = list(self.run_ids)
        first = self.student.seed % max(1, len(teachers))
        outputs: dict[RunConfig, dict[str, Tensor]] = {}
        for teacher in teachers[first:] + teachers[:first]:
            run_id = self.run_ids[teacher]
            load = cache(partial(_load, teacher, run_id))
            outputs[teacher] = {}
            with run_lock(run_id) if teacher in missing else nullcontext():
                for task, path in self._files(teacher).items():
                    compute = partial(_compute, load, task, corpus.train[task], device)
                    [logits] = sealed_arrays(path, ("logits",), compute, OTHER_FOLDERS)
                    outputs[teacher][task] = torch.from_numpy(logits)
        means = {}
        for task in self.student.tasks if teachers else ():
            means[task] = mean_logits(TASKS[task], [outputs[teacher][task] for teacher in self.student.teachers])
        return means

    def _files(self, teacher: RunConfig) -> dict[str, Path]:
        """Task -> the file of a teacher's outputs in the first store that has it intact, or else in the first store."""
        files = {}
        for task in self.student.tasks:
            name = f"{TEACHERS}/{self.run_ids[teacher]}/{task}-{self.data}.npz"
            paths = [store / name for store in self.among]
            files[task] = next(filter(is_sealed, paths), paths[0])
        return files


def _load(teacher: RunConfig, run_id: str) -> MultitaskBert:
    """The model of a teacher. Raises CheckpointError, which names the folder, if it is damaged or of another run."""
    folder = model_folder(run_id)
    model = MultitaskBert.load(folder)
    found = model.run_config.digest
    if found != teacher.digest:
        raise CheckpointError(f"{folder}: the model is of run {found}; delete the folder, train again")
    return model


def _compute(load: Callable[[], MultitaskBert], task: str, table: pd.DataFrame, device: torch.device) -> list[ndarray]:
    """The logits of a model for all rows of a task's table, in half precision."""
    model = load().to(device)
    logits = prepare_task(model, task, table, device).logits(model)
    return [logits.cpu().numpy().astype(np.float16)]
