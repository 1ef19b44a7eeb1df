"""What runs with tasks in turn forget."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mtbert.training import turn_ends
from mtbert_lab.statistics import Difference, paired
from mtbert_lab.store import Run


def forgotten(runs: dict[str, list[Run]]) -> pd.DataFrame:
    """Dev scores of runs with tasks in turn, a row per run, seed, task and pass: run, seed, task, after, score.

    after: the task of the pass; of several passes over a task the last is listed. Forgetting is what a task loses of
    its score after its last pass (Lopez-Paz and Ranzato 2017, section 3, whose backward transfer is the last pass minus
    each task's own, without the last task).
    """
    rows = []
    for name, group in runs.items():
        for run in group:
            sizes = [run.provenance["rows"][f"train {task}"] for task in run.config.tasks]
            points = run.curve.set_index("step")
            for step, after in turn_ends(run.config, sizes).items():
                for task in run.config.tasks:
                    score = points.at[step, f"dev_{task}"]
                    rows.append((name, run.config.seed, task, after, score))
    columns = ["run", "seed", "task", "after", "score"]
    return pd.DataFrame(rows, columns=columns).drop_duplicates(columns[:-1], keep="last", ignore_index=True)


def forgetting(run: Run) -> float:
    """How much of its dev score a task loses from its own last pass to the end, the mean over all tasks but the last.

    Of a run with tasks in turn; `forgotten` has the scores.
    """
    scores = forgotten({"": [run]}).set_index(["task", "after"])["score"]
    *earlier, end = run.config.tasks
    losses = [scores[task, task] - scores[task, end] for task in earlier]
    return float(np.mean(losses))


def less_forgotten(orders: Sequence[tuple[list[Run], list[Run]]]) -> Difference:
    """Forgetting without a method minus that with it, the mean over orders of the tasks, paired by seed.

    orders: the runs without and with the method, in each order of the tasks. A seed counts that all of them have.
    """
    by_seed = []
    for plain, method in orders:
        by_seed += [{run.config.seed: forgetting(run) for run in runs} for runs in (plain, method)]
    seeds = sorted(set(by_seed[0]).intersection(*by_seed[1:]))
    losses = np.array([[one[seed] for one in by_seed] for seed in seeds])
    losses = losses.reshape(len(seeds), len(orders), 2)  # (S, orders, without and with)
    gaps = (losses[..., 0] - losses[..., 1]).mean(axis=1)
    return paired(gaps)
