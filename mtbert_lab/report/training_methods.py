"""What notebook 06 shows: conflicts of gradients, gradient methods, forgetting, heads, and labels of its runs.

Tables read stored runs, figures are f(table); the sentences stand in the notebook.
"""

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns

from mtbert.data import TASKS
from mtbert_lab.report import notebook, plots, tables, words
from mtbert_lab.report.tables import Comparison, Grid
from mtbert_lab.report.words import METHOD_LABELS, TASK_LABELS
from mtbert_lab.statistics import interval_text
from mtbert_lab.store import Run, stack_predictions

HEADS = ("feeds", "upstream", "combine", "head_norm", "head_dropout")  # the fields of progressive heads
RECIPE = (
    *("head_layers", "head_dropout", "dropout_place", "pooling", "schedule", "warmup"),
    *("weight_decay", "weighting", "pretrain", "pos_features", "augment"),
)
NORM_ALONE = "layer norm and dropout alone"  # the run that has what came in with the feeds, without them
LABELS = words.TRAINING  # where the names of runs in the grids are short for what they are


def names_of_gains(differences: pd.DataFrame) -> str:
    """The runs that are shown to be better, "none" where there are none."""
    gains = differences.loc[differences["verdict"] == "better", "run"]
    return ", ".join(gains.unique()) or "none"


def in_groups(differences: pd.DataFrame) -> pd.DataFrame:
    """A table of differences with its runs in the groups of words.RECIPES, those that are in none behind them."""
    others = differences[~differences["run"].isin(words.WORDS_OF_RECIPES)]
    if len(others) == len(differences):
        return notebook.labelled(differences, LABELS)
    return pd.concat([notebook.in_words(differences, words.RECIPES), others.assign(group="Other runs")])


# Gradients


def surgery(grid: Grid) -> Comparison:
    """Every gradient method beside the plain sum under the same plan, where tasks are not trained in turn."""
    plain = grid.pick(lambda config: config.gradients == "sum")  # first, so that it is the reference
    return tables.compare(plain | grid, *tables.GRADIENTS, where=lambda config: not tables.is_in_turn(config))


def recorded_cosines(grid: Grid) -> tuple[str, pd.DataFrame]:
    """The first run that recorded cosines, one without a gradient method before others, and the cosines of its seeds.

    Columns step, layer, pair, cosine; no name and no rows where no run recorded any.
    """
    found = {name: runs for name, runs in grid.runs.items() if len(runs[0].cosines)}
    if not found:
        return "", pd.DataFrame(columns=["step", "layer", "pair", "cosine"])
    name = min(found, key=lambda name: found[name][0].config.gradients != "sum")
    return name, _by_pair(pd.concat([run.cosines for run in found[name]], ignore_index=True))


def _by_pair(cosines: pd.DataFrame) -> pd.DataFrame:
    pair = cosines["first"].map(TASK_LABELS) + " and " + cosines["second"].map(TASK_LABELS)
    return cosines.assign(pair=pair)[["step", "layer", "pair", "cosine"]]


def ends_of_conflict(grid: Grid, name: str) -> dict[str, object]:
    """Places of a sentence: the shares in conflict, over all pairs, in the first and the last sixth of a run's seeds.

    Each goes from the seed with the lowest share to that with the highest; runs is their number. Empty without cosines.
    """
    ends = [_at_both_ends(_by_pair(run.cosines)) for run in grid.runs.get(name, []) if len(run.cosines)]
    if not ends:
        return {}
    first, last = (f"{min(shares):.0%} to {max(shares):.0%}" for shares in zip(*ends, strict=True))
    return {"first": first, "last": last, "runs": len(ends)}


def conflict_places(cosines: pd.DataFrame) -> dict[str, object]:
    """Places of a sentence on conflicts: most and least, the shares of levels and steps, and the pairs that have them.

    Also low and high, the ends of the pairs' mean cosines; first and last, the share of all pairs in the first and in
    the last sixth of the run; when_in_conflict, the mean of all cosines below 0. Empty where no cosine is recorded.
    """
    if cosines.empty:
        return {}
    by_pair = cosines.groupby("pair", sort=False)["cosine"]
    shares = by_pair.agg(lambda cosine: (cosine < 0).mean())
    means = by_pair.mean()
    pairs = {"most_often": shares.idxmax(), "least_often": shares.idxmin()}
    first, last = _at_both_ends(cosines)
    ends = {"first": first, "last": last, "when_in_conflict": cosines.loc[cosines["cosine"] < 0, "cosine"].mean()}
    return {"most": shares.max(), "least": shares.min(), "low": means.min(), "high": means.max(), **ends, **pairs}


def _at_both_ends(cosines: pd.DataFrame) -> tuple[float, float]:
    """The share in conflict, over all pairs, in the first and in the last sixth of a run."""
    shares = conflicts(cosines).groupby("until")["share"].mean()
    return shares.iloc[0], shares.iloc[-1]


def conflicts(cosines: pd.DataFrame) -> pd.DataFrame:
    """The share of levels in conflict (cosine below 0) in each step: columns until, step, pair, share.

    until: the last step of the sixth of the run that the step is in.
    """
    length = -(-cosines["step"].max() // 6)  # rounded up
    table = cosines.assign(until=-(-cosines["step"] // length) * length, share=cosines["cosine"] < 0)
    return table.groupby(["until", "step", "pair"], sort=False)["share"].mean().reset_index()


def conflict_figure(shares: pd.DataFrame) -> plt.Figure:
    """A line per pair of tasks over the parts of a run, from the table of `conflicts`."""
    figure, ax = plt.subplots(figsize=(7, 3.4))
    looks = dict(palette="colorblind", markers=["o", "^", "s"], dodge=0.3, capsize=0.05, lw=1.5)
    sns.pointplot(shares, x="until", y="share", hue="pair", seed=0, ax=ax, **looks)
    ax.axhline(0.5, color="black", lw=1, ls=":", label="random directions")
    ax.set(xlabel="sixth of the run that ends at step", ylabel="share of levels in conflict", ylim=(0, 1))
    ax.legend(title=None, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return figure


def method_costs(comparison: Comparison) -> pd.DataFrame:
    """A row per gradient method: run, seeds, speed (of the plain sum's tokens per second) with low and high.

    Also the `constraint_shares`, nan where a method has no constraints.
    """
    rows = []
    for name, reference in comparison.both_stored.items():
        runs = comparison.runs[name]
        speed = tables.cost_ratio(runs, comparison.runs[reference], "tokens_per_cpu_second")
        row = {"run": name, "seeds": len(runs), "speed": speed.value, "low": speed.low, "high": speed.high}
        rows.append(row | constraint_shares(runs))
    return pd.DataFrame(rows, columns=["run", "seeds", "speed", "low", "high", "projected", "broken"])


def constraint_shares(runs: Sequence[Run]) -> dict[str, float]:
    """projected, the share of steps whose gradient was changed, and broken, of constraints that the update breaks to
    first order, over all runs; nothing where a method has no constraints."""
    cost = pd.DataFrame([run.cost for run in runs]).sum(numeric_only=True)
    if "constraints_steps" not in cost:
        return {}
    return {
        "projected": cost["constraints_projected"] / cost["constraints_steps"],
        "broken": cost["constraints_broken"] / cost["constraints_checked"],
    }


def method_costs_text(costs: pd.DataFrame) -> pd.DataFrame:
    """The table of `method_costs` for reading."""
    speed = [interval_text(*row, ".2f") for row in costs[["speed", "low", "high"]].itertuples(index=False)]
    shares = costs[["projected", "broken"]].map(lambda share: "–" if pd.isna(share) else f"{share:.0%}")
    return costs[["run", "seeds"]].assign(speed=speed, **shares)


def constraint_places(costs: pd.DataFrame) -> dict[str, float]:
    """Places of a sentence on GEM and A-GEM, of the table of `method_costs`.

    Of GEM alone, as A-GEM promises nothing of each memory, least and most: of the shares of steps that it changes;
    fewest and broken: of the shares of broken constraints. speed: the highest of both.
    """
    gem = costs[costs["run"].str.endswith(", GEM")]
    changed, broken = gem["projected"], gem["broken"]
    ends = {"least": changed.min(), "most": changed.max(), "fewest": broken.min(), "broken": broken.max()}
    return ends | {"speed": costs.dropna(subset="projected")["speed"].max()}


# Forgetting


def score_changes(turns: Comparison) -> pd.DataFrame:
    """How far a task's dev score has changed since its own training, a row per run, seed, task and later pass.

    Columns order (the run without a method), training (the method), seed, task, after, change; no rows for the task
    that is trained last.
    """
    scores = tables.forgotten(turns.runs)
    own = scores[scores["after"] == scores["task"]].set_index(["run", "seed", "task"])["score"]
    scores = scores.join(own.rename("own"), on=["run", "seed", "task"])
    rows = []
    for row in scores.itertuples():
        config = turns.runs[row.run][0].config
        place, passed = config.tasks.index(row.task), config.tasks.index(row.after)
        if place <= passed and row.task != config.tasks[-1]:
            order = turns.references.get(row.run, row.run)
            training = METHOD_LABELS[config.gradients]
            rows.append((order, training, row.seed, row.task, row.after, row.score - row.own))
    return pd.DataFrame(rows, columns=["order", "training", "seed", "task", "after", "change"])


def forgetting_figure(changes: pd.DataFrame) -> plt.Figure:
    """A panel per order of tasks, a line per task and method: mean and range over seeds, of `score_changes`."""
    changes = changes.assign(task=changes["task"].map(TASK_LABELS), after=changes["after"].map(TASK_LABELS))
    orders = list(changes["order"].unique())
    palette = {TASK_LABELS[task]: plots.COLOURS.get(task, plots.GREY) for task in TASKS}
    looks = {
        "hue_order": [label for label in palette if label in set(changes["task"])],
        "style_order": list(changes["training"].unique()),
        "palette": palette,
        "markers": True,
        "err_style": "bars",
        "errorbar": ("pi", 100),
    }
    figure, [axes] = plt.subplots(1, len(orders), figsize=(9, 3.6), sharey=True, squeeze=False)
    for ax, order in zip(axes, orders, strict=True):
        part = changes[changes["order"] == order]
        is_last = ax is axes[-1]
        sns.lineplot(part, x="after", y="change", hue="task", style="training", legend=is_last, ax=ax, **looks)
        ax.axhline(0, color="black", lw=1)
        ax.margins(x=0.15)  # else the names of the last and the next first task touch
        ax.set_title(plots.as_text(LABELS.get(order, order)), fontsize="medium")
        ax.set(xlabel="after the training of", ylabel="dev score minus that right\nafter the task's own training")
    axes[-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    return figure


def kept_table(turns: Comparison) -> pd.DataFrame:
    """What each method keeps against none, over the seeds that both have; a row per method and order, as text."""
    rows = []
    for name, reference in turns.both_stored.items():
        without = {run.config.seed: run for run in turns.runs[reference]}
        method = {run.config.seed: run for run in turns.runs[name]}
        seeds = sorted(without.keys() & method.keys())
        if not seeds:
            continue
        pair = [without[seed] for seed in seeds], [method[seed] for seed in seeds]
        broken = constraint_shares(pair[1]).get("broken", math.nan)
        found = tables.less_forgotten([pair])
        losses = [np.mean([tables.forgetting(run) for run in runs]) for runs in pair]
        slower = tables.times_as_long([pair])
        rows.append(
            {
                "run": name,
                "forgotten without": f"{losses[0]:.3f}",
                "forgotten with": f"{losses[1]:.3f}",
                "kept more, paired by seed": found.text(),
                "pairs": str(found.seeds),
                "processor time": "–" if math.isnan(slower) else f"{slower:.1f} times",
                "broken": "–" if math.isnan(broken) else f"{broken:.0%}",
            }
        )
    return pd.DataFrame(rows)


def forgotten_table(turns: Comparison) -> pd.DataFrame:
    """How much of each task is forgotten by the end, mean (lowest to highest seed); a row per run, as text."""
    rows = []
    for name, runs in turns.runs.items():
        *earlier, last = runs[0].config.tasks
        scores = tables.forgotten({name: runs}).pivot_table(index=["task", "seed"], columns="after", values="score")
        row = {"run": name, "seeds": str(len(runs))}
        for task in earlier:
            loss = (scores[task] - scores[last])[task]
            row[f"{TASK_LABELS[task]} forgotten"] = f"{loss.mean():.3f} ({loss.min():.3f} to {loss.max():.3f})"
        row[f"{TASK_LABELS[last]} learned"] = f"{scores[last][last].mean():.3f}"
        rows.append(row)
    return pd.DataFrame(rows).fillna("–")


# Heads


def feeds_alone(comparison: Comparison) -> Comparison:
    """The runs with feeds, layer norm and dropout beside the one with these two alone."""
    fed = comparison.grid.pick(lambda config: bool(config.feeds) and config.head_norm)
    return Comparison(comparison.grid, dict.fromkeys(fed.configs, NORM_ALONE))


def heads_table(comparison: Comparison) -> pd.DataFrame:
    """What heads do to the predictions of STS, and how long they train; a row per run, as text.

    The slope is that of the label on the prediction: above 1 where predictions are drawn to the middle.
    """
    rows = []
    for name, runs in comparison.runs.items():
        if "sts" not in runs[0].config.tasks:
            continue
        predicted, labels = stack_predictions(runs, "sts")  # (S, N), (N,)
        slopes = [np.polyfit(one, labels, 1)[0] for one in predicted]
        longer = "–"
        reference = comparison.runs.get(comparison.references.get(name, ""), [])
        if reference and tables.are_timed_alike([*runs, *reference]):
            longer = tables.cost_ratio(runs, reference, "train_cpu_seconds").text(".2f")
        rows.append(
            {
                "run": name,
                "sd of the predictions": f"{predicted.std(axis=1).mean():.2f}",
                "sd of the labels": f"{labels.std():.2f}",
                "slope": f"{np.mean(slopes):.2f}",
                "nearest to 0 or 5": f"{tables.share_at_ends(predicted):.1%}",
                "times as long": longer,
                "seeds": str(len(runs)),
            }
        )
    return pd.DataFrame(rows)
