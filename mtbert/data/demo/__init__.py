"""The embedded demo corpus: four small tasks in the layout of the course's datasets; every sentence is ours."""

from pathlib import Path


def root() -> Path:
    """The folder of the corpus, from which `load_table` and `Corpus.load` read its twelve files."""
    return Path(__file__).parent
