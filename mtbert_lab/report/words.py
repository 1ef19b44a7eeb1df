"""Names of runs in words that a reader can say, by groups, in the order of a figure's lines; a reference has none."""

PLANS = {  # of frozen_shared_individual.yaml
    "Own layers below": {
        "I1 S5": "lowest layer own",
        "I2 S4": "lower two own",
        "I3 S3": "lower half own",
    },
    "Frozen layers": {
        "F2 S4": "two frozen, four shared",
        "F2 I4": "two frozen, four own",
        "F2 S2 I2": "two frozen, two shared, two own",
        "F4 S2": "four frozen, two shared",
        "F4 I2": "four frozen, two own",
        "frozen": "all frozen",
    },
    "Two of three tasks share": {
        "SST and Quora share": "SST and Quora share all",
        "SST and STS share": "SST and STS share all",
        "Quora and STS share": "Quora and STS share all",
        "S3, then SST and Quora share": "SST and Quora share the upper half",
        "S3, then SST and STS share": "SST and STS share the upper half",
        "S3, then Quora and STS share": "Quora and STS share the upper half",
    },
}
FEATURES = {  # what a head reads of two embeddings; of singles.yaml and heads_schedules.yaml
    "concat": "both embeddings",
    "concat + product": "both, and their product",
    "concat + product + difference + cosine": "both, product, difference, cosine",
    "sigmoid of cosine": "STS by the cosine (paper 001)",
}
SAMPLERS = {  # of pals_samplers.yaml
    "1-bert, square root": "by the square root of size",
    "PAL, square root": "square root, with PALs",
    "1-bert, annealed": "annealed",
    "PAL, annealed": "annealed, with PALs",
    "1-bert, proportional": "by size",
    "PAL, proportional": "by size, with PALs",
}
RECIPES = {  # of heads_schedules.yaml: what a run changes of the recipe
    "Heads": {
        "heads of 2 layers": "heads of two layers",
        "heads of 3 layers": "heads of three layers",
        "heads of 5 layers": "heads of five layers",
        "heads of 3 layers, width 64": "three layers, 64 wide",
        "heads of 3 layers, width 1024": "three layers, 1,024 wide",
        "heads of 3 layers, dropout inside": "three layers, dropout between them",
        "heads of 3 layers, dropout .3 inside": "three layers, dropout of 0.3 between them",
        "dropout .3": "dropout of 0.3 before the heads",
        "dropout .5": "dropout of 0.5 before the heads",
    },
    "Embedding of a sentence": {
        "1-bert, CLS": "the CLS token in place of the mean",
        "1-bert, pooler": "the pooler in place of the mean",
        "part-of-speech features": "part-of-speech tags beside it",
    },
    "Schedule and weight decay": {
        "1-bert, no schedule": "constant learning rate",
        "1-bert, cosine": "cosine schedule",
        "1-bert, onecycle": "one-cycle schedule",
        "1-bert, decay .01": "weight decay of 0.01",
    },
    "Losses": {
        "uncertainty weights": "losses weighted by uncertainty",
        "loss ratio weights": "losses weighted by their ratio",
    },
    "Masked language modelling": {
        "pretraining before": "masked words before the training",
        "pretraining after": "masked words after the training",
        "pretraining before and after": "masked words before and after",
    },
}
WORDS_OF_RECIPES = {run: words for runs in RECIPES.values() for run, words in runs.items()}
COMPARED_RECIPES = (
    *("uncertainty weights", "loss ratio weights", "1-bert, cosine", "1-bert, onecycle"),
    *("1-bert, decay .01", "dropout .3", "1-bert, CLS"),
)
CHANGES = {  # of several grids: what is added to a run
    "Adapters in a shared encoder": {
        "1-bert + PAL": "PALs, all tasks in every step",
        "PAL, round-robin": "PALs, tasks drawn equally",
        "PAL, square root": "PALs, drawn by the square root of size",
        "PAL, proportional": "PALs, drawn by size",
        "PAL, annealed": "PALs, annealed draws",
        "PAL, annealed, s = 162": "larger PALs, annealed draws",
        "low-rank, annealed": "low-rank adapters",
        "Houlsby, annealed": "Houlsby's adapters",
        "Houlsby of the PALs code, annealed": "Houlsby's adapters as in the PALs code",
        "LHUC, annealed": "scaled hidden units (LHUC)",
    },
    "Gradient methods": {
        "1-bert, PCGrad": "PCGrad, all shared",
        "1-bert, CAGrad": "CAGrad, all shared",
        "1-bert, GEM": "GEM, all shared",
        "1-bert, A-GEM": "A-GEM, all shared",
        "hybrid-3, PCGrad": "PCGrad, half shared",
        "hybrid-3, GEM": "GEM, half shared",
        "hybrid-3, A-GEM": "A-GEM, half shared",
    },
    "Soft sharing of separate encoders": {
        "3-bert, l2 0.01": "squared distance, weight 0.01",
        "3-bert, l2 0.1": "squared distance, weight 0.1",
        "3-bert, l2 1": "squared distance, weight 1",
        "3-bert, trace 0.001": "trace norm, weight 0.001",
        "3-bert, trace 0.01": "trace norm, weight 0.01",
        "3-bert, trace 0.1": "trace norm, weight 0.1",
    },
    "Losses, schedules and inputs": {
        **{run: WORDS_OF_RECIPES[run] for run in COMPARED_RECIPES},
        "part-of-speech features": "part-of-speech tags",
        "pretraining before": "masked language modelling before",
    },
}
