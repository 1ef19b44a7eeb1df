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
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from statistics import NormalDist

import numpy as np
from numpy import ndarray

from mtbert.config import RunConfig
from mtbert.report.claims import Compared, check_claims
from mtbert.report.tables import Grid
from mtbert.results import Run, difference, training_key
from mtbert.statistics import CLOSE, LEVEL, NOT_DECIDED, SEEDS, Side, decide, draw_variances

MOST = 4  # further seeds of a side in one step
HOPELESS = 30  # seeds of a side, which no comparison is worth
Seeds = Counter[str]  # numbers of seeds, by the training key of their configuration


@dataclass(frozen=True)
class Open:
    """A comparison without a verdict."""

    text: str
    keys: tuple[str, str]  # training keys of the two configurations
    compared: Compared
    factor: float  # by which the correction for many comparisons raises its p-value

    @property
    def sides(self) -> tuple[Side, ...]:
        return self.compared.found.sides

    @property
    def counts(self) -> ndarray:
        """Seeds of either side, (2,)."""
        return np.array([len(side.scores) for side in self.sides])

    def noise(self, guess: float) -> ndarray:
        """Variance of one seed of either side, (2,), beyond the examples; guess: where neither side knows it."""
        first, second = (_seed_variance(side) for side in self.sides)
        return np.array([first or second or guess, second or first or guess])

    def chance(self, seeds: Seeds, noise: ndarray, spread: float) -> float:
        """Probability of a verdict with these numbers of seeds; noise: as of `noise`; spread: of true differences."""
        counts = np.array([seeds[key] for key in self.keys])
        is_alone = np.array([side.prior is None for side in self.sides])
        if (is_alone & (counts < SEEDS)).any():
            return 0.0
        before = float((noise / self.counts).sum())
        after = float((noise / counts).sum())
        later = self._later(before, after, spread)
        reach = self._reach(after, counts.sum() - 2 if is_alone.any() else 1e6)
        margin = self.compared.margin
        if self._is_order:
            return later.cdf(-reach) + 1 - later.cdf(reach)
        above = 1 - later.cdf(margin + reach)
        if self.compared.claimed == "not greater":
            return later.cdf(margin - reach) + above
        within = later.cdf(margin - reach) - later.cdf(reach - margin) if reach < margin else 0.0
        return within + later.cdf(-margin - reach) + above

    @property
    def _is_order(self) -> bool:
        return self.compared.claimed in ("greater", "smaller")

    def _later(self, before: float, after: float, spread: float) -> NormalDist:
        """Distribution of D', the difference with more seeds; before: B, after: A, spread: t2 of the equation above."""
        found = self.compared.found
        replaced = max(0.0, 1 - after / before)
        shrunk = before / (found.of_examples + before + spread)
        mean = found.value * (1 - replaced * shrunk)
        variance = replaced**2 * before * (1 - shrunk) + replaced * after
        return NormalDist(mean, math.sqrt(variance) or 1e-12)

    def _reach(self, after: float, freedom: float) -> float:
        """How far from 0, or from the margin, the test asks a difference to be; after: its variance over seeds."""
        from scipy.special import stdtrit  # here, as it is slow to import

        level = LEVEL / self.factor
        if self._is_order:
            level /= 2  # two-sided
        return -stdtrit(freedom, level) * math.sqrt(self.compared.found.of_examples + after)


def _seed_variance(side: Side) -> float:
    """Median variance of a seed beyond the examples; 0 where one seed borrows nothing."""
    if side.prior is None and len(side.scores) == 1:
        return 0.0
    variance = float(np.median(draw_variances(side.scores, side.prior)))
    return max(0.0, variance - side.explained)


def open_claims() -> Iterator[Open]:
    """The claims of the papers without a verdict."""
    rows = [row for row in check_claims() if "compared" in row]
    factors = [row["q"] / row["p"] for row in rows if row.get("p")]
    usual = float(np.median(factors)) if factors else 1.0
    for row in rows:
        one = row["compared"]
        if row["verdict"] in (CLOSE, NOT_DECIDED) and one.found.sides:
            factor = row["q"] / row["p"] if row.get("p") else usual
            yield Open(f"{row['paper']}: {row['claim']}", _keys(one), one, factor)


def open_differences(grid: Grid) -> Iterator[Open]:
    """The differences of a grid's runs from its first one that have too few seeds."""
    names = list(grid.runs)
    for name in names[1:]:
        reference = names[0]
        first, second = grid.runs[name], grid.runs[reference]
        for task in first[0].config.tasks:
            if task not in second[0].config.tasks:
                continue
            found = difference(first, second, task)
            if decide([found])["verdict"][0] == NOT_DECIDED and found.sides:
                one = Compared("greater", found, 0.0, (first, second), task)
                yield Open(f"{name} against {reference} on {task}", _keys(one), one, factor=1.0)


def _keys(compared: Compared) -> tuple[str, str]:
    first, second = compared.runs
    return training_key(first[0].config), training_key(second[0].config)


class Planner:
    """Chances of verdicts with more seeds of the runs of some grids."""

    def __init__(self, grids: Sequence[Grid]) -> None:
        self.stored = _by_training(grids)
        found = list(open_claims())
        for grid in grids:
            found += open_differences(grid)
        self.open = [one for one in found if self.stored.keys() & set(one.keys)]
        self.seeds = Seeds()
        for one in self.open:
            self.seeds |= Seeds(dict(zip(one.keys, one.counts.tolist(), strict=True)))  # the larger number
        self.minutes = {key: _minutes(runs) for key, (_, runs) in self.stored.items()}
        self._noise, self._spread = _expected(self.open)

    def chances(self, further: Seeds, among: Sequence[int] | None = None) -> ndarray:
        """The probability of a verdict with further seeds, for every open comparison or for some of them."""
        seeds = self.seeds + further
        chances = []
        for i in range(len(self.open)) if among is None else among:
            one = self.open[i]
            chances.append(one.chance(seeds, self._noise[i], self._spread[one.compared.what]))
        return np.array(chances)

    def packages(self) -> Iterator[Seeds]:
        """Up to MOST further seeds of either side of a comparison, for the runs of these grids."""
        for first, second in dict.fromkeys(one.keys for one in self.open):
            for of_first, of_second in product(range(MOST + 1), repeat=2):
                package = Seeds()
                if of_first and first in self.minutes:
                    package[first] = of_first
                if of_second and second in self.minutes:
                    package[second] = of_second
                if package:
                    yield package

    def cost(self, further: Seeds) -> float:
        """Minutes of one core."""
        return sum(n * self.minutes[key] for key, n in further.items())

    def choose(self, minutes: float) -> Seeds:
        """The further seeds, package by package, the highest gain in probable verdicts per minute first."""
        chosen = Seeds()
        while True:
            now = self.chances(chosen)
            best = None
            best_rate = 1e-6
            for package in self.packages():
                cost = self.cost(package)
                touched = [i for i, one in enumerate(self.open) if package.keys() & set(one.keys)]
                gain = (self.chances(chosen + package, touched) - now[touched]).sum()
                if cost <= minutes and gain / cost > best_rate:
                    best = package
                    best_rate = gain / cost
            if best is None:
                return chosen
            minutes -= self.cost(best)
            chosen += best

    def hopeless(self) -> list[str]:
        """The comparisons that probably get no verdict with HOPELESS seeds of the runs of these grids."""
        further = Seeds()
        for key, n in self.seeds.items():
            if key in self.minutes:
                further[key] = max(0, HOPELESS - n)
        chances = self.chances(further)
        return [one.text for one, chance in zip(self.open, chances, strict=True) if chance < 0.5]


def _by_training(grids: Sequence[Grid]) -> dict[str, tuple[str, list[Run]]]:
    """Training key -> name in its grid, stored runs."""
    stored = {}
    for grid in grids:
        for name, runs in grid.runs.items():
            key = training_key(runs[0].config)
            _, known = stored.get(key, ("", []))
            if len(runs) > len(known):
                stored[key] = name, runs
    return stored


def plan_seeds(grids: Sequence[Grid], hours: float) -> tuple[list[tuple[str, RunConfig]], str]:
    """The runs of further seeds that decide most within so many hours of one core, and a table of what they decide."""
    planner = Planner(grids)
    chosen = planner.choose(60 * hours)
    before, after = planner.chances(Seeds()), planner.chances(chosen)
    runs, lines = [], []
    for key in planner.seeds:
        if key not in chosen:
            continue
        name, stored = planner.stored[key]
        new = _free_seeds(stored, chosen[key])
        runs += [(name, stored[0].config.but(seed=seed)) for seed in new]
        gains = []
        for one, start, end in zip(planner.open, before, after, strict=True):
            if key in one.keys and end > start + 0.01:
                gains.append(f"{one.text} ({start:.0%} to {end:.0%})")
        numbers = ", ".join(map(str, new))
        minutes = len(new) * planner.minutes[key]
        lines.append(f"{name}, seeds {numbers}, {minutes:.0f} min: {'; '.join(gains)}")
    spent = planner.cost(chosen) / 60
    lines.append(f"{len(runs)} runs, {spent:.1f} hours on one core; verdicts expected: {sum(after - before):.1f}")
    if hopeless := planner.hopeless():
        lines.append(f"{HOPELESS} seeds would probably not decide:")
        lines += [f"  {text}" for text in dict.fromkeys(hopeless)]
    return runs, "\n".join(lines)


def _free_seeds(stored: Sequence[Run], n: int) -> list[int]:
    """The n lowest seeds that are not stored."""
    taken = {run.config.seed for run in stored}
    free = set(range(1, len(taken) + n + 1)) - taken
    return sorted(free)[:n]


def _minutes(runs: Sequence[Run]) -> float:
    """Minutes of one core that a run of this configuration takes, with its evaluation."""
    seconds = [run.cost["train_cpu_seconds"] + run.cost["score_seconds"] for run in runs]
    return float(np.median(seconds)) / 60


def _expected(found: Sequence[Open]) -> tuple[list[ndarray], dict[str, float]]:
    """The variance of one seed of either side of each comparison; metric -> variance of its true differences."""
    known = defaultdict(list)
    for one in found:
        for side in one.sides:
            if variance := _seed_variance(side):
                known[one.compared.what].append(variance)
    anywhere = list(chain(*known.values())) or [1e-5]

    noise = []
    excess = defaultdict(list)  # of the squared differences over their variances
    for one in found:
        metric = one.compared.what
        guess = float(np.median(known[metric] or anywhere))
        noise.append(one.noise(guess))
        difference = one.compared.found
        of_seeds = (noise[-1] / one.counts).sum()
        excess[metric].append(difference.value**2 - difference.of_examples - of_seeds)
    return noise, {metric: max(1e-6, float(np.mean(values))) for metric, values in excess.items()}
