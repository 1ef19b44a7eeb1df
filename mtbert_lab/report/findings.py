"""What was found: the sentences that open README.md, notebook 00 and the site, and the tables of README.md.

The sentences are written by hand, with places for numbers that the stored runs fill. Each names the verdicts that it
rests on; where the runs have another one, the sentence says so in red. One whose runs are not stored is left out.

`tools/write_readme.py` writes them and the tables into README.md.
"""

import math
from functools import partial
from itertools import chain
from typing import Any

import pandas as pd

from mtbert_lab.analysis.remedies import judge_trials, three_in_one
from mtbert_lab.analysis.systems import Systems
from mtbert_lab.paths import find_result
from mtbert_lab.report.claim_counts import findings_checked
from mtbert_lab.report.sentences import SMALL, Fact, Place, no_gain, place, row_of, tell, the_verdict, told
from mtbert_lab.report.tables import (
    ADAPTER,
    GRADIENTS,
    TOGETHER,
    Comparison,
    Grid,
    compare,
    is_plain,
    is_unified,
    less_forgotten,
    one_family,
    read_runs,
    times_as_long,
)
from mtbert_lab.statistics import (
    MEAN_MARGIN,
    NO_DIFFERENCE,
    PAIRED_SEEDS,
    TOO_FEW,
    count_seeds,
    decide,
)
from mtbert_lab.store import MissingRun, Run, overall_interval, summarize

MARKS = {NO_DIFFERENCE: "{} =", TOO_FEW: "{} ?"}  # of a difference in a table; an order is bold, a small one in italics
PLANS = ("1-bert", "hybrid-5", "hybrid-4", "hybrid-3", "hybrid-2", "hybrid-1", "3-bert")
CONTRADICTED_CLAIMS = "*heads of 3 layers beat one linear layer*"
SEQUENCES = ("sequence", "sequence, PAL", "reverse sequence")  # of gradients.yaml: two orders, one also with PALs


def box() -> str:
    """The sentences as a list in Markdown."""
    read = partial(read_runs, "cpu")
    read_larger = partial(read_runs, "base")
    adapters = read("pals_samplers")
    plans = compare(read("hybrids"), "plan")
    changes = changes_at_papers_size(read_larger("pals"), read_larger("gradients"))
    singles = compare(read("singles"), "pairs")
    together = pairs_together(read("heads_schedules"), plans.grid)
    gradients = read("gradients")
    samplers = compare(adapters, "sampling")
    longer = compare(read("samplers_long"), "sampling")
    schemes = one_task_a_step(adapters, plans.grid)
    methods = _methods(adapters, gradients)
    sentences = {
        "Cost of sharing": lambda: sharing_costs(plans),
        "Mean of three runs": lambda: three_runs_buy(plans),
        "Heads on two embeddings": lambda: pairs_in_two(singles, together),
        "Samplers": lambda: samplers_trade(samplers, longer, schemes),
        "Adapters and gradient methods": lambda: " ".join(
            filter(None, [nothing_gained(*methods), told(pals_at_papers_size, changes, pals_added(gradients))])
        ),
        "GEM": lambda: gem_is_for(gradients),
        "The papers' findings": _claims_checked,
    }
    lines = []
    for heading, sentence in sentences.items():
        if text := told(sentence):
            lines.append(f"- **{heading}.** {text}")
    return "\n".join(lines)


def _methods(adapters: Grid, gradients: Grid) -> list[Comparison]:
    """Adapters beside none, and gradient methods beside the plain sum where a step has all tasks."""
    return [
        compare(adapters, *ADAPTER),
        compare(gradients, *GRADIENTS, where=is_unified),
    ]


def pals_added(grid: Grid) -> Comparison:
    """Runs with PALs beside those without, where a step has all tasks and sums their losses."""
    return compare(grid, *ADAPTER, where=is_plain)


def changes_at_papers_size(pals: Grid, gradients: Grid) -> Comparison:
    """PALs and PCGrad beside 1-bert in the grids of params/base, corrected together."""
    return one_family([pals_added(pals), compare(gradients, *GRADIENTS)], ["1-bert + PAL", "1-bert, PCGrad"])


def _largest_gain(plans: Comparison) -> Any:
    """The largest difference overall of a plan from 1-bert; raises MissingRun where none is stored."""
    row_of(plans, "3-bert")
    return next(plans.overall.sort_values("value", ascending=False).itertuples())


def recommendation() -> str:
    """Three answers: when to share everything, when to split, what to leave; raises MissingRun without the runs."""
    read = partial(read_runs, "cpu")
    plans = compare(read("hybrids"), "plan")
    larger = compare(read_runs("base", "sharing"), "plan")
    millions = {
        name: f"{plans.part.runs_of(name)[0].cost['parameters'] / 1e6:.0f}"
        for name in ("hybrid-3", "hybrid-1", "3-bert")
    }
    share = tell(
        "**Share everything** where speed or memory in use decides: with MiniLM, after {steps} steps, the best split "
        "gains {largest} overall; the margin is {margin:g}.",
        largest=Place(_largest_gain(plans), SMALL),
        margin=MEAN_MARGIN,
        steps=f"{plans.part.runs_of('1-bert')[0].cost['steps']:,}",
    )
    split = tell(
        "**Split upper layers** where Quora matters, on whose duplicates MiniLM was tuned: *hybrid-3* gains "
        "{quora:size} there with {half} million parameters. *hybrid-1* gains {more:size} with {one} million, and an "
        "encoder for each task {most:size} with {three} million. No task is shown to lose.",
        quora=place(plans, "hybrid-3", "better", "quora"),
        more=place(plans, "hybrid-1", "better", "quora"),
        most=place(plans, "3-bert", "better", "quora"),
        losses=Fact((plans.differences["verdict"] == "worse").any(), False),
        half=millions["hybrid-3"],
        one=millions["hybrid-1"],
        three=millions["3-bert"],
    )
    gains = no_gain(pd.concat([one.differences for one in _methods(read("pals_samplers"), read("gradients"))]))
    few = gains.pop("few")
    leave = tell(
        "With three tasks **we saw no reason** for PALs and other adapters, nor for PCGrad, CAGrad, GEM and A-GEM "
        "where every step has all tasks. Most of their differences on tasks have too few runs to tell.",
        few=Fact(2 * few > gains["count"], True),
        **gains,
    )
    return " ".join(filter(None, [share, split, told(_at_papers_size, larger), leave]))


def _at_papers_size(plans: Comparison) -> str:
    return tell(
        "With MPNet, of the papers' size, there are too few runs to tell any plan from *1-bert*.",
        three=place(plans, "3-bert", TOO_FEW),
        overall=Fact(the_verdict(plans.overall), TOO_FEW),
    )


def limits() -> str:
    """What the findings rest on, as a list in Markdown; raises MissingRun without the runs."""
    read = partial(read_runs, "cpu")
    short = read("hybrids").runs_of("1-bert")[0]
    names = ["1-bert, long", "3-bert, long", "hybrid-3, long"]
    long = compare(read("distil_long").only(names), "plan")
    passes = short.cost["steps"] * short.config.batch_size["quora"] / short.provenance["rows"]["train quora"]
    steps = [f"{runs[0].cost['steps']:,}" for runs in ([short], long.part.runs_of(names[0]))]
    lines = [
        "Most runs have one small encoder, MiniLM, tuned on sentence pairs, Quora's duplicates among them. Plans, PALs "
        "and PCGrad ran with MPNet, tuned alike.",
        "Scores are on dev. Only the best model and its students were scored on test, once, outside this repository.",
        tell(
            "{short} steps are {passes:.1f} passes over Quora. After {long} steps *3-bert* scores {quora:more} "
            "there than *1-bert*, with too few runs to tell.",
            short=steps[0],
            passes=passes,
            long=steps[1],
            quora=place(long, names[1], TOO_FEW, "quora"),
            overall=place(long, names[1], TOO_FEW),
        ),
        "Learning rate and batch sizes were chosen with *1-bert*, and may favour it.",
        "The tasks' losses have equal weights; with others another plan may win.",
        "All texts are short and English.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def plan_points(plans: Comparison, task: str) -> pd.DataFrame:
    """A row per plan of PLANS that is stored, for its figure: name, parameters (million), value, low, high.

    value: the score on a task minus that of 1-bert, which has no interval.
    """
    rows = []
    for name in PLANS:
        if name not in plans.runs:
            continue
        about = {"name": name, "parameters": plans.runs[name][0].cost["parameters"] / 1e6}
        if name in plans.references:
            row = row_of(plans, name, task)
            rows.append(about | {"value": row.value, "low": row.low, "high": row.high})
        else:
            rows.append(about | {"value": 0.0})
    return pd.DataFrame(rows, columns=["name", "parameters", "value", "low", "high"])


def plan_differences(plans: Comparison) -> str:
    """A row per plan: parameters, seeds, and dev scores minus those of 1-bert, which has its scores."""
    lines = ["| plan | parameters | seeds | SST | Quora | STS | overall |", "|---|---|---|---|---|---|---|"]
    for name in PLANS:
        if not (runs := plans.runs.get(name)):
            continue
        columns = [*runs[0].config.tasks, None]
        if name in plans.references:
            cells = [_marked(row_of(plans, name, task)) for task in columns]
        else:
            scores = [summarize(runs, task)["value"] for task in columns[:-1]]
            cells = [f"{score:.3f}" for score in [*scores, overall_interval(runs).value]]
        cells = [name, f"{runs[0].cost['parameters'] / 1e6:.1f} M", str(len(runs)), *cells]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _marked(row: Any) -> str:
    """A difference as MARKS says: +0.013 in bold where an order is shown."""
    number = f"{row.value:+.3f}"
    if row.verdict in MARKS:
        return MARKS[row.verdict].format(number)
    return f"*{number}*" if row.is_small else f"**{number}**"


def sharing_costs(plans: Comparison) -> str:
    """What one encoder loses against one for each task; raises MissingRun without the runs."""
    return tell(
        "One encoder for three tasks loses {quora} on Quora against an encoder for each. On SST the difference is "
        "shown not to matter, and on STS there are too few runs to tell. The encoder was tuned on Quora's "
        "duplicates; another one may lose more or less.",
        quora=place(plans, "3-bert", "better", "quora"),
        sts=place(plans, "3-bert", TOO_FEW, "sts"),
        sst=place(plans, "3-bert", NO_DIFFERENCE, "sst"),
    )


def three_runs_buy(plans: Comparison) -> str:
    """What the mean of three runs of one encoder gains; raises MissingRun without the runs."""
    runs = {name: plans.part.runs_of(name) for name in ("1-bert", "3-bert")}
    if len(runs["1-bert"]) < 3:
        raise MissingRun("1-bert: fewer than three seeds are stored")
    trials = chain(*(three_in_one(Systems.read(task, runs), *runs) for task in TOGETHER))
    judged = judge_trials(list(trials)).set_index(["remedy", "task"])

    def against(reference: str, task: str, verdict: str) -> Place:
        return Place(judged.loc[f"mean of three 1-bert against one {reference}", task], verdict)

    return tell(
        "The mean prediction of three runs of *1-bert* gains {quora:size4} on Quora and {sts:size} on STS over one "
        "run, both below the margin. On SST the difference is shown not to matter. On Quora one *3-bert*, as large as "
        "the three, scores {behind:size} more than this mean.",
        quora=against("1-bert", "quora", SMALL),
        sts=against("1-bert", "sts", SMALL),
        sst=against("1-bert", "sst", NO_DIFFERENCE),
        behind=against("3-bert", "quora", "worse"),
    )


def pairs_together(heads: Grid, plans: Grid) -> Comparison:
    """1-bert of three tasks with two embeddings of a pair beside that with one sequence; heads of one layer."""
    grid = heads | plans.only(["1-bert"])
    return compare(grid, "pairs", "similarity", where=lambda config: is_unified(config) and config.head_layers == 1)


def pairs_in_two(pairs: Comparison, together: Comparison) -> str:
    """What heads lose that compare two embeddings of a pair; raises MissingRun without the runs.

    pairs: in models of one task; together: from `pairs_together`.
    """
    features = "concat + product + difference + cosine"
    return tell(
        "A linear head cannot compare two sentences that are encoded apart: in models of one task it loses {sts:size} "
        "on STS and {quora:size} on Quora against both in one sequence. A head that also reads product, difference and "
        "cosine has too few runs to tell there; in a model of three tasks it loses {in_three:size} on STS and "
        "{quora_in_three:size} on Quora.",
        sts=place(pairs, "STS alone, concat", "worse", "sts"),
        quora=place(pairs, "Quora alone, concat", "worse", "quora"),
        all_sts=place(pairs, f"STS alone, {features}", TOO_FEW, "sts"),
        all_quora=place(pairs, f"Quora alone, {features}", TOO_FEW, "quora"),
        in_three=place(together, f"1-bert, {features}", "worse", "sts"),
        quora_in_three=place(together, f"1-bert, {features}", "worse", "quora"),
    )


def samplers_trade(samplers: Comparison, longer: Comparison, schemes: Comparison) -> str:
    """What drawing the task of a step changes; raises MissingRun without the runs.

    longer: with four times the steps. schemes: from `one_task_a_step`.
    """
    return tell(
        "Where a step trains one task, draws in proportion to size gain {quora:size} on Quora over round-robin "
        "and lose {sts:size} on STS. In models with PALs they lose {short:size} overall, and with four times the steps "
        "they gain {long:size}. "
        "Against 1,200 steps of all tasks, annealed draws gain {annealed:size} on Quora and lose {annealed_sts:size} "
        "on STS.",
        quora=place(samplers, "1-bert, proportional", "better", "quora"),
        sts=place(samplers, "1-bert, proportional", "worse", "sts"),
        short=place(samplers, "PAL, proportional", "worse"),
        long=place(longer, "PAL, proportional, long", "better"),
        annealed=place(schemes, "1-bert, annealed", "better", "quora"),
        annealed_sts=place(schemes, "1-bert, annealed", "worse", "sts"),
    )


def one_task_a_step(samplers: Grid, plans: Grid) -> Comparison:
    """1-bert with one drawn task a step beside that with all tasks in every step, of as many examples."""
    names = ["1-bert, round-robin", "1-bert, square root", "1-bert, proportional", "1-bert, annealed"]
    return Comparison(samplers | plans, dict.fromkeys(names, "1-bert"))


def nothing_gained(adapters: Comparison, gradients: Comparison) -> str:
    """What adapters and gradient methods are not shown to gain; raises MissingRun without the runs."""
    if gradients.overall.empty:
        raise MissingRun("no runs with a gradient method")
    differences = pd.concat([adapters.differences, gradients.differences])
    return tell(
        "None of {count} differences on tasks is shown to be a gain above the margin; {few} have too few runs to tell. "
        "Overall the gradient methods are shown not to matter. The adapters ran in 2,400 steps of one task each, the "
        "gradient methods in steps of all tasks.",
        overall=Fact(the_verdict(gradients.overall), NO_DIFFERENCE),
        **no_gain(differences),
    )


def gem_is_for(gradients: Grid) -> str:
    """What GEM keeps of earlier tasks in sequence, and what it takes; raises MissingRun without the runs."""
    keeps = gem_keeps(gradients)
    config = gradients.configs[f"{SEQUENCES[0]}, GEM"][0]
    times = times_as_long(_without_and_with_gem(gradients))
    if math.isnan(times):
        raise MissingRun("no pair of runs is stored that CPUs of one kind trained")
    return (
        f"{keeps} On CPUs it takes about {times:.0f} times as long. It keeps {config.memory_size} examples of each "
        f"earlier task, and reads {config.memory_batch} of each a step."
    )


def gem_keeps(gradients: Grid) -> str:
    """What GEM keeps of earlier tasks in sequence; raises MissingRun without the runs."""
    found = less_forgotten(_without_and_with_gem(gradients))
    if not found.seeds:
        raise MissingRun("no seed is stored of all of them")
    config = gradients.configs[f"{SEQUENCES[0]}, GEM"][0]
    row = next(decide([found], [MEAN_MARGIN]).itertuples())
    where = f"Where tasks are trained one after the other, {config.train_rows:,} examples each"
    if found.is_decided:
        return tell(f"{where}, the scores of earlier tasks fall by {{kept}} less with GEM.", kept=Place(row, "better"))
    return tell(
        f"{where}, forgetting without GEM minus that with it is {{kept:+}} ({count_seeds(found.seeds)} so far; a "
        f"verdict needs {PAIRED_SEEDS}).",
        kept=Place(row, TOO_FEW),
    )


def _without_and_with_gem(gradients: Grid) -> list[tuple[list[Run], list[Run]]]:
    """The runs without and with GEM in each of SEQUENCES; raises MissingRun where one is not stored."""
    return [(gradients.runs_of(name), gradients.runs_of(f"{name}, GEM")) for name in SEQUENCES]


def agem_keeps(gradients: Grid) -> str:
    """What A-GEM keeps in the one order of tasks that has it, beside GEM; raises MissingRun without the runs."""
    plain = gradients.runs_of("sequence")
    found = [less_forgotten([(plain, gradients.runs_of(f"sequence, {method}"))]) for method in ("A-GEM", "GEM")]
    if not all(one.seeds for one in found):
        raise MissingRun("no seed is stored of both")
    agem, gem = decide(found, [MEAN_MARGIN] * 2).itertuples()
    return tell(
        "In the order SST, Quora, STS these scores fall by {agem:size} less with A-GEM and by {gem:size} less with "
        "GEM.",
        agem=Place(agem, "better"),
        gem=Place(gem, "better"),
    )


def pals_at_papers_size(changes: Comparison, small: Comparison) -> str:
    """What PALs change with an encoder of the papers' size; raises MissingRun without the runs.

    small: PALs in the small encoder.
    """
    return tell(
        "PALs in steps of all tasks are shown not to matter overall, with MiniLM and with MPNet.",
        pals=place(changes, "1-bert + PAL", NO_DIFFERENCE),
        small_pals=place(small, "1-bert + PAL", NO_DIFFERENCE),
    )


def _claims_checked() -> str:
    claims = pd.read_csv(find_result("claims.csv"), dtype={"paper": str})
    checked = findings_checked(claims)
    waiting = " {waiting} more have no runs yet." if checked["waiting"] else ""
    return tell(
        "Our runs check {count} findings. They reproduce {reproduced} and contradict {contradicted}: heads of three "
        "layers lose to heads of one by less than the margin, where a pair is one sequence. For {equal} the difference "
        "is shown not to matter, and {few} have too few runs to tell." + waiting,
        claim=Fact(checked["names"], CONTRADICTED_CLAIMS),
        **checked,
    )
