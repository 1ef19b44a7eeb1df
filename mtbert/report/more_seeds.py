"""Which further seeds decide most per hour: `mtbert train GRID... --decide HOURS`.

A comparison is open where it is "too close to call" or "not decided". What it will say after more seeds is predicted.
The true difference is normal around 0, its variance by the method of moments from all comparisons of the same metric,
so that the estimate D is shrunk towards 0. New seeds replace a part r of the seed noise s, whose variance falls from B
to A = (1 - r) B; the noise of the examples stays. With V the variance of D and t2 that of true differences,

    D' ~ N(D (1 - r B / (V + t2)),  r^2 B (1 - B / (V + t2)) + r A),

and there is a verdict where D' is farther from 0, or from the margin, than the test asks. The number of seeds is fixed
here, before they are looked at: adding seeds until a test rejects would reject true nulls far more often than it says.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count, islice, product

import numpy as np

from mtbert.config import RunConfig
from mtbert.report.claims import Compared, check_all, judge_all
from mtbert.report.tables import Grid
from mtbert.results import Run, difference, training_key
from mtbert.statistics import CLOSE, LEVEL, NOT_DECIDED, SEEDS, Side, decide, draw_variances

MOST = 4  # further seeds of a side in one step
HOPELESS = 30  # seeds of a side, which no comparison is worth
Seeds = dict[str, int]  # training key of a configuration -> number of its seeds


@dataclass(frozen=True)
class Open:
    """A comparison without a verdict."""

    text: str
    metric: str
    keys: tuple[str, str]  # training keys of the two configurations
    compared: Compared
    factor: float  # by which the correction for many comparisons raises its p-value

    def noise(self, guess: float) -> np.ndarray:
        """Variance of one seed of either side, (2,), beyond the examples; guess: where neither side knows it."""
        first, second = map(_seed_variance, self.compared.found.sides)
        return np.array([first or second or guess, second or first or guess])

    def chance(self, seeds: Seeds, noise: np.ndarray, spread: float) -> float:
        """Probability of a verdict with these numbers of seeds; noise: as of `noise`; spread: of true differences."""
        from scipy.special import stdtrit  # here, as it is slow to import

        found, margin = self.compared.found, self.compared.margin
        now = np.array([len(side.scores) for side in found.sides])
        then = np.array([seeds[key] for key in self.keys])
        alone = np.array([side.prior is None for side in found.sides])
        if (alone & (then < SEEDS)).any():
            return 0.0
        before = float((noise / now).sum())
        after = float((noise / then).sum())
        variance = found.of_examples + before
        replaced = max(0.0, 1 - after / before)
        shrunk = before / (variance + spread)
        mean = found.value * (1 - replaced * shrunk)
        deviation = math.sqrt(replaced**2 * before * (1 - shrunk) + replaced * after) or 1e-12
        is_order = self.compared.claimed in ("greater", "smaller")
        freedom = then.sum() - 2 if alone.any() else 1e6
        level = LEVEL / self.factor / (2 if is_order else 1)
        reach = -stdtrit(freedom, level) * math.sqrt(found.of_examples + after)

        def below(x: float) -> float:
            return 0.5 * math.erfc((mean - x) / deviation / math.sqrt(2))

        if is_order:
            return below(-reach) + 1 - below(reach)
        if self.compared.claimed == "not greater":
            return below(margin - reach) + 1 - below(margin + reach)
        within = max(0.0, below(margin - reach) - below(reach - margin)) if reach < margin else 0.0
        return within + below(-margin - reach) + 1 - below(margin + reach)


def _seed_variance(side: Side) -> float:
    """Median variance of a seed beyond the examples; 0 where one seed borrows nothing."""
    if side.prior is None and len(side.scores) == 1:
        return 0.0
    return max(0.0, float(np.median(draw_variances(side.scores, side.prior))) - side.explained)


def open_claims() -> Iterator[Open]:
    """The claims of the papers without a verdict."""
    claims, _, compared = check_all()
    verdicts = judge_all(compared, claims)
    factors = [row["q"] / row["p"] for row in verdicts.values() if row.get("p")]
    for number, one in compared.items():
        claim, row = claims[number], verdicts[number]
        if row["verdict"] in (CLOSE, NOT_DECIDED) and one.found.sides:
            factor = row["q"] / row["p"] if row.get("p") else float(np.median(factors))
            keys = tuple(training_key(runs[0].config) for runs in one.runs)
            yield Open(f"{claim['paper']}: {claim['claim']}", claim["difference"][3], keys, one, factor)


def open_differences(grid: Grid) -> Iterator[Open]:
    """The differences of a grid's runs from its first one that have too few seeds."""
    names = list(grid.runs)
    for name in names[1:]:
        pair = grid.runs[name], grid.runs[names[0]]
        both = [task for task in pair[0][0].config.tasks if task in pair[1][0].config.tasks]
        for task in both:
            found = difference(*pair, task)
            if decide([found])["verdict"][0] == NOT_DECIDED and found.sides:
                keys = tuple(training_key(runs[0].config) for runs in pair)
                compared = Compared("greater", found, 0.0, pair)
                yield Open(f"{name} against {names[0]} on {task}", task, keys, compared, 1.0)


class Planner:
    """Chances of verdicts with more seeds of the runs of some grids."""

    def __init__(self, grids: Sequence[Grid]) -> None:
        self.stored: dict[str, tuple[str, list[Run]]] = {}  # training key -> name in its grid, stored runs
        for grid in grids:
            for name, runs in grid.runs.items():
                key = training_key(runs[0].config)
                if key not in self.stored or len(runs) > len(self.stored[key][1]):
                    self.stored[key] = name, runs
        found = list(open_claims())
        for grid in grids:
            found += open_differences(grid)
        self.open = [one for one in found if self.stored.keys() & set(one.keys)]
        self.seeds: Seeds = {}
        for one in self.open:
            for key, side in zip(one.keys, one.compared.found.sides, strict=True):
                self.seeds[key] = max(len(side.scores), self.seeds.get(key, 0))
        self.minutes = {key: _minutes(runs) for key, (_, runs) in self.stored.items() if key in self.seeds}
        self._noise, self._spread = _expected(self.open)

    def chances(self, seeds: Seeds, among: Sequence[int] | None = None) -> np.ndarray:
        """The probability of a verdict for every open comparison, or for some of them."""
        seeds = self.seeds | seeds
        numbers = range(len(self.open)) if among is None else among
        pairs = [(self.open[i], self._noise[i]) for i in numbers]
        return np.array([one.chance(seeds, noise, self._spread[one.metric]) for one, noise in pairs])

    def packages(self, seeds: Seeds) -> Iterator[Seeds]:
        """Up to MOST further seeds of either side of a comparison, for the runs of these grids."""
        for keys in dict.fromkeys(one.keys for one in self.open):
            for more in product(range(MOST + 1), repeat=2):
                package = {key: seeds[key] + n for key, n in zip(keys, more, strict=True) if n and key in self.minutes}
                if package:
                    yield package

    def cost(self, package: Seeds, seeds: Seeds) -> float:
        """Minutes of one core."""
        return sum((n - seeds[key]) * self.minutes[key] for key, n in package.items() if n > seeds[key])

    def choose(self, minutes: float) -> Seeds:
        """The numbers of seeds to have, package by package, the highest gain in probable verdicts per minute first."""
        seeds = dict(self.seeds)
        while True:
            now = self.chances(seeds)
            best = None
            best_rate = 1e-6
            for package in self.packages(seeds):
                cost = self.cost(package, seeds)
                touched = [i for i, one in enumerate(self.open) if package.keys() & set(one.keys)]
                rate = (self.chances(seeds | package, touched) - now[touched]).sum() / cost
                if cost <= minutes and rate > best_rate:
                    best, best_rate = package, rate
            if best is None:
                return seeds
            minutes -= self.cost(best, seeds)
            seeds |= best

    def hopeless(self) -> list[str]:
        """The comparisons that probably get no verdict with HOPELESS seeds of the runs of these grids."""
        chances = self.chances({key: max(n, HOPELESS) for key, n in self.seeds.items() if key in self.minutes})
        return [one.text for one, chance in zip(self.open, chances, strict=True) if chance < 0.5]


def plan_seeds(grids: Sequence[Grid], hours: float) -> tuple[list[tuple[str, RunConfig]], str]:
    """The runs of further seeds that decide most within so many hours of one core, and a table of what they decide."""
    planner = Planner(grids)
    chosen = planner.choose(60 * hours)
    before, after = planner.chances({}), planner.chances(chosen)
    rows, runs = [], []
    for key, wanted in chosen.items():
        if wanted == planner.seeds[key]:
            continue
        name, stored = planner.stored[key]
        taken = {run.config.seed for run in stored}
        free = (seed for seed in count(1) if seed not in taken)
        new = list(islice(free, wanted - planner.seeds[key]))
        runs += [(name, stored[0].config.but(seed=seed)) for seed in new]
        gains = [
            f"{one.text} ({start:.0%} to {end:.0%})"
            for one, start, end in zip(planner.open, before, after, strict=True)
            if key in one.keys and end > start + 0.01
        ]
        minutes = len(new) * planner.minutes[key]
        rows.append((name, ", ".join(map(str, new)), f"{minutes:.0f}", "; ".join(gains)))
    lines = [f"{name}, seeds {new}, {minutes} min: {decides}" for name, new, minutes, decides in rows]
    spent = planner.cost(chosen, planner.seeds)
    lines.append(f"{len(runs)} runs, {spent / 60:.1f} hours on one core; verdicts expected: {sum(after - before):.1f}")
    if hopeless := planner.hopeless():
        lines += [f"{HOPELESS} seeds would probably not decide:", *(f"  {text}" for text in dict.fromkeys(hopeless))]
    return runs, "\n".join(lines)


def _minutes(runs: Sequence[Run]) -> float:
    """Minutes of one core that a run of this configuration takes, with its evaluation."""
    return float(np.median([run.cost["train_cpu_seconds"] + run.cost["score_seconds"] for run in runs])) / 60


def _expected(found: Sequence[Open]) -> tuple[list[np.ndarray], dict[str, float]]:
    """The variance of one seed of either side of each comparison; metric -> variance of its true differences."""
    known: dict[str, list[float]] = {}
    for one in found:
        variances = [_seed_variance(side) for side in one.compared.found.sides]
        known.setdefault(one.metric, []).extend(variance for variance in variances if variance)
    anywhere = list(chain(*known.values())) or [1e-5]
    noise = [one.noise(float(np.median(known[one.metric] or anywhere))) for one in found]
    spread: dict[str, list[float]] = {}
    for one, pair in zip(found, noise, strict=True):
        difference = one.compared.found
        seeds = sum(n / len(side.scores) for n, side in zip(pair, difference.sides, strict=True))
        spread.setdefault(one.metric, []).append(difference.value**2 - difference.of_examples - seeds)
    return noise, {metric: max(1e-6, float(np.mean(excess))) for metric, excess in spread.items()}
