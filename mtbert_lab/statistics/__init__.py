"""Estimates over seeds and examples, and the rule for verdicts: the only place for either.

The rule. It has its form since version 0.11.0, after most of the stored runs; *Stability* came later.

*Difference.* Mean score of one configuration minus that of another, on the same dev examples, unpaired in the seeds.
Its variance is the jackknife's over the examples (Efron 1982) plus, for each of the two configurations,
max(0, sigma^2 - e) / S: S seeds, sigma^2 the variance of a score over seeds, e the part of it that the examples
explain.

*Prior and pooled seed variance* (Smyth 2004). The sample variance s^2 of S seeds is taken for s0^2 F(S - 1, d0). The
prior, s0^2 and d0, is estimated by maximum likelihood from the configurations of a stratum; d0 is averaged over its
likelihood on a grid from 0.5 to 1,000, capped at the stratum's degrees of freedom. Pooled with it, sigma^2 is drawn
from (d0 s0^2 + (S - 1) s^2) / chi^2(d0 + S - 1), by quantiles and not at random. The p-value of a difference D is the
mean of 2 Phi(-|D| / sqrt V) over the draws, V the variance above. e is the configuration's own, or the stratum's mean
for one seed.

*Stratum.* Runs of the same corpus, encoder, scheme and number of steps with pretrained weights that are not all frozen,
the last step kept, the sentences of a pair in one sequence, no pretraining after the training, no teachers; for each
trained task, or mean of tasks, by itself. The stratum of a run of a single task has all runs of its task and number of
steps, of whatever scheme but in turn. A prior needs 10 configurations with two seeds or more and 20 degrees of freedom.
Tasks in turn have none, nor has a stratum with so many equal scores that s0^2 is 0, nor a configuration whose mean
score is more than 2 s0 below the lowest of those configurations. Configurations that differ only in whether cosines
were recorded count once.

*Seeds.* One seed is enough with a prior. Without one (d0 is then 0) three are needed; fewer are too few to tell, and
a difference of a single seed has no interval.

*Words.* A difference has one of three kinds of verdict. An order ("better" or "worse"; of a claim, "reproduced" or
"contradicted") is shown where the corrected p-value of no difference is below LEVEL; where its value is smaller than
the margin of its task it is "by less than the margin". Else "no difference that matters" is shown where the corrected
p-value of two one-sided tests against the margin (Schuirmann 1987) is below LEVEL. Else there are "too few runs to
tell", also where no verdict may be given for want of seeds; then the seeds that would tell are estimated for a
difference of the size found, with the variance over seeds at the median of its draws. A claim of "no difference" is
"reproduced" or "contradicted" by the two one-sided tests or their opposite, whichever has the smaller p-value, and "no
improvement" likewise on one side; else there are too few runs to tell. An interval is printed at the level at which the
correction judges its p-value.

*Families.* Claims of the papers are corrected together by Benjamini and Hochberg's method (1995), a claim that repeats
another's check counting once, but a comparison in both directions twice; the differences of one table of a notebook by
Holm's (1979), those on tasks and those overall apart. What is claimed is one family, the equivalence tests of the same
comparisons another.

*Forgetting.* Where tasks are trained one after the other, the forgetting of a run is the mean over its tasks but the
last of (score right after the task's own training minus score at the end), on the same dev rows. A method against none
is paired by seed, as both draw the same batches and the same heads: for each seed the mean over the orders of tasks at
hand of the difference in forgetting, then Student's t over the seeds, 1 to 6 for GEM and A-GEM. Nothing else is paired
by seed. What pairs would share elsewhere, a seed's batches and heads, explains little of the variance over seeds, and a
test on pairs of a few seeds does not see what all pairs have in common: their examples. These are about half of the
variance of 3-bert minus 1-bert on Quora, and nearly all of it on STS (five seeds each). With other examples, a 95 %
interval from the pairs alone would hold in about nine of ten cases on Quora, and in about eight of ten on STS.

*Stability.* How unsteady a run is: the standard deviation of its dev score over the points of the learning curve in the
last third of its steps, at least three. A score that still rises there counts as unsteady, too.

*Losses, gaps between train and dev, unsteadiness, shares of extreme predictions, costs* are compared by Welch's t-test
with two seeds or more on either side, costs on logarithms and only between runs of one version on processors of one
name with as many threads. Their variance is that over seeds alone, on these dev examples. Losses and unsteadiness have
no margin; gaps and shares of extreme predictions have that of their task's score.

*Bootstrap.* Statistics of errors, and means of several runs, have no such variance. They have 2,000 resamples of the
examples and of the seeds, percentiles for intervals, and Holm's correction in a table. What is not below LEVEL is "not
shown"; where it is a difference of scores, and both one-sided tests against the margin are below LEVEL, it is "no
difference that matters". S resampled seeds have only (S - 1) / S of the variance of a mean over seeds.

Symbols: N examples, S seeds, T tasks, Q quantiles.

*How a verdict comes about.* `mtbert_lab/store/compare.py` takes two configurations from the store, and fits a prior to
the runs that are similar to each (variances.py). `difference_of_scores` compares them (differences.py, intervals.py),
and `judge` corrects a whole family (verdicts.py). Tables and sentences of notebooks call `decide`; claims.csv is judged
in `mtbert_lab/report/claims.py`.
"""

from mtbert_lab.statistics.differences import PAIRED_SEEDS, Difference, count_seeds, difference_of_scores, paired, welch
from mtbert_lab.statistics.intervals import (
    Interval,
    Scored,
    example_share,
    interval_text,
    scores_and_covariance,
    seed_mean,
)
from mtbert_lab.statistics.resamples import Estimate, Resamples, p_within
from mtbert_lab.statistics.variances import SEEDS, Prior
from mtbert_lab.statistics.verdicts import (
    CONTRADICTED,
    LEVEL,
    MEAN_MARGIN,
    NO_DIFFERENCE,
    NOT_SHOWN,
    ORDERS,
    REPRODUCED,
    TOO_FEW,
    Claim,
    benjamini_hochberg,
    decide,
    holm,
    judge,
    judge_estimates,
    margin_of,
    seeds_text,
    verdict_text,
)

__all__ = [
    "CONTRADICTED",
    "LEVEL",
    "MEAN_MARGIN",
    "NOT_SHOWN",
    "NO_DIFFERENCE",
    "ORDERS",
    "PAIRED_SEEDS",
    "REPRODUCED",
    "SEEDS",
    "TOO_FEW",
    "Claim",
    "Difference",
    "Estimate",
    "Interval",
    "Prior",
    "Resamples",
    "Scored",
    "benjamini_hochberg",
    "count_seeds",
    "decide",
    "difference_of_scores",
    "example_share",
    "holm",
    "interval_text",
    "judge",
    "judge_estimates",
    "margin_of",
    "p_within",
    "paired",
    "scores_and_covariance",
    "seed_mean",
    "seeds_text",
    "verdict_text",
    "welch",
]
