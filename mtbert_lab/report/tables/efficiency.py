"""What runs cost, and what they gain for it: ratios of costs, sizes of plans, Pareto fronts."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from mtbert.multitask import encoder_config
from mtbert.sharing import SharingPlan
from mtbert_lab.report.tables.grids import Grid
from mtbert_lab.report.tables.scores import last_overall
from mtbert_lab.statistics import Difference, Interval, welch
from mtbert_lab.store import Run, difference


def trained_by(run: Run) -> str:
    """The version, the machine and the threads of a run; costs are compared where these are the same."""
    about = run.provenance
    return f"mtbert {about['mtbert']} on {about['device']}, threads: {about['threads']}"


def are_timed_alike(runs: Sequence[Run]) -> bool:
    """Whether the times of runs can be compared: one version, CPUs of one kind, as many threads.

    A GPU trains several runs at once.
    """
    return all(run.is_on_cpu for run in runs) and len(set(map(trained_by, runs))) == 1


def times_as_long(orders: Sequence[tuple[list[Run], list[Run]]]) -> float:
    """Processor time of the training with a method divided by that without it; orders: as in `less_forgotten`.

    The geometric mean over pairs of one seed, on CPUs of one kind, by one version and with as many threads; nan
    where there is none.
    """
    ratios = []
    for plain, method in orders:
        on_cpus = {(run.config.seed, trained_by(run)): run for run in plain if run.is_on_cpu}
        for run in method:
            if other := on_cpus.get((run.config.seed, trained_by(run))):
                ratios.append(run.cost["train_cpu_seconds"] / other.cost["train_cpu_seconds"])
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else math.nan


def plan_tables(grid: Grid) -> dict[str, pd.DataFrame]:
    """Stored run -> the table of its sharing plan, `SharingPlan.table`, the plans with the fewest copies first."""
    found = {}
    for name, runs in grid.runs.items():
        config = runs[0].config
        encoder = encoder_config(config)
        plan = SharingPlan.parse(config.plan_text, config.scored, encoder.num_hidden_layers)
        found[name] = plan.table(encoder)
    return dict(sorted(found.items(), key=lambda item: item[1]["copies"].sum()))


def plan_words(plans: dict[str, pd.DataFrame], runs: dict[str, list[Run]]) -> dict[str, str]:
    """Run -> its name with the layers that it shares and its parameters: "hybrid-3: 3 of 6 shared, 33.7 M"."""
    words = {}
    for name, plan in plans.items():
        copies = plan["copies"].filter(like="layer")
        millions = runs[name][0].cost["parameters"] / 1e6
        words[name] = f"{name}: {(copies == 1).sum()} of {len(copies)} shared, {millions:.1f} M"
    return words


def costs(runs: dict[str, list[Run]]) -> pd.DataFrame:
    """A row per run: name, seeds, overall (last step, mean over seeds), parameters (M), state (MiB).

    state: in float32 the weights, and of the trained ones a gradient and AdamW's two moments. Runs without a score of
    the last step are left out.
    """
    rows = []
    for name, group in runs.items():
        score = last_overall(group)
        cost = group[0].cost
        numbers = cost["parameters"] + 3 * cost["trained_parameters"]
        rows.append((name, len(group), score, cost["parameters"] / 1e6, 4 * numbers / 2**20))
    columns = ["name", "seeds", "overall", "parameters (M)", "state (MiB)"]
    table = pd.DataFrame(rows, columns=columns)
    return table.dropna(subset="overall").reset_index(drop=True)


def log_cost_ratio(first: list[Run], second: list[Run], quantity: str) -> Difference:
    """Logarithm of the ratio of the costs of two configurations, means over seeds, by Welch's t-test."""
    first_costs = [run.cost[quantity] for run in first]
    second_costs = [run.cost[quantity] for run in second]
    return welch(np.log(first_costs), np.log(second_costs))


def cost_ratio(first: list[Run], second: list[Run], quantity: str) -> Interval:
    """Ratio of the costs of two configurations and its 95 % interval.

    One seed on a side has none, nor have times that are not comparable, which differ by more than chance.
    """
    found = log_cost_ratio(first, second, quantity)
    low, high = found.interval() if are_timed_alike([*first, *second]) else (np.nan, np.nan)
    return Interval(*np.exp([found.value, low, high]).tolist())


def pareto(table: pd.DataFrame, cost: str) -> list[str]:
    """Names of the rows, from the cheapest up, whose `overall` is above that of every row which costs no more."""
    table = table.sort_values([cost, "overall"], ascending=[True, False])
    best_before = table["overall"].cummax().shift(fill_value=-np.inf)
    is_ahead = table["overall"] > best_before
    return table.loc[is_ahead, "name"].tolist()


def gaps(runs: dict[str, list[Run]], reference: str) -> pd.DataFrame:
    """Overall score of each run minus that of the reference, with 95 % intervals: columns name, overall, low, high."""
    rows = []
    for name, some in runs.items():
        gap = difference(some, runs[reference])
        rows.append((name, gap.value, *gap.known_interval()))
    return pd.DataFrame(rows, columns=["name", "overall", "low", "high"])


def front_gains(table: pd.DataFrame, runs: dict[str, list[Run]], cost: str) -> pd.DataFrame:
    """The front from the cheapest up: cost, overall, seeds, gains over the one before and the first, with intervals."""
    names = pareto(table, cost)
    front = table.set_index("name").loc[names, [cost, "overall", "seeds"]].rename_axis(None)
    on_before, on_first = ["–"], ["–"]
    for before, name in pairwise(names):
        on_before.append(difference(runs[name], runs[before]).text())
        on_first.append(difference(runs[name], runs[names[0]]).text())
    front = front.round({cost: 1, "overall": 3})
    return front.assign(**{"gain on the one before": on_before, "gain on the first": on_first})
