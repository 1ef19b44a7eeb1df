"""Names in words that a reader can say: of tasks, methods, metrics, and from words.yaml of runs."""

from pathlib import Path

from mtbert.strict_yaml import read_yaml

_WORDS = read_yaml(Path(__file__).with_name("words.yaml"))
PLANS = _WORDS["plans"]
FEATURES = _WORDS["features"]
SAMPLERS = _WORDS["samplers"]
RECIPES = _WORDS["recipes"]
CHANGES = _WORDS["changes"]
CHANGES_AT_PAPERS_SIZE = _WORDS["changes_at_papers_size"]
STUDENTS = _WORDS["students"]
WORDS_OF_RECIPES = {run: words for runs in RECIPES.values() for run, words in runs.items()}
TRAINING = _WORDS["training"] | WORDS_OF_RECIPES


class _Labels(dict[str, str]):
    """Names in figures and tables; what has none here keeps its own."""

    def __missing__(self, name: str) -> str:
        return name


TASK_LABELS = _Labels(sst="SST", cfimdb="CFIMDB", quora="Quora", sts="STS")
METHOD_LABELS = _Labels(sum="plain", gem="GEM", agem="A-GEM", pcgrad="PCGrad", cagrad="CAGrad")
METRIC_LABELS = _Labels(accuracy="accuracy", pearson="Pearson correlation", f1="F1", macro_f1="macro F1", r2="R²")
