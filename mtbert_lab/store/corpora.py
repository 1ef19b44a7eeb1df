"""The tables of configurations, and the ids of runs, which name both: `<configuration>-<data>`, see `folders`."""

from pathlib import Path

from mtbert.config import RunConfig
from mtbert.data import TASKS, Corpus, DataError, demo
from mtbert.training import load_corpus
from mtbert_lab.paths import find_data


class NoCourseData(DataError):
    """The course's files are not here, and no folder was named."""


def data_root(config: RunConfig, data: str | Path | None = None) -> Path:
    """The folder of the run's tables: the embedded demo corpus, or the course's files; raises NoCourseData without."""
    if config.corpus == "demo" or all(TASKS[task].folder for task in config.scored):  # tasks of one's own have theirs
        return demo.root()
    folder = find_data(data)
    if folder is None:
        raise NoCourseData(
            "corpus is 'course', but its files are not here: name their folder with --data or MTBERT_DATA, "
            "download them with `mtbert data fetch`, or set corpus to 'demo'"
        )
    return folder


def read_corpus(config: RunConfig, data: str | Path | None = None) -> Corpus:
    """The tables of a run; raises DataError where they are not here."""
    return load_corpus(config, data_root(config, data))


class Corpora:
    """The tables of many configurations, each read once; data: as in `data_root`."""

    def __init__(self, data: str | Path | None) -> None:
        self.data = data
        self._tables: dict[tuple, Corpus] = {}

    def key(self, config: RunConfig) -> tuple:
        """What the tables of a configuration depend on."""
        drawn_with = config.seed if config.train_rows else None
        return (config.corpus, config.tasks, config.scored, config.train_rows, config.augment, drawn_with)

    def __call__(self, config: RunConfig) -> Corpus:
        """The tables of a configuration."""
        key = self.key(config)
        if key not in self._tables:
            self._tables[key] = read_corpus(config, self.data)
        return self._tables[key]

    def run_id(self, config: RunConfig) -> str:
        """The id of a run."""
        return run_id_of(config, self(config))


def run_id_of(config: RunConfig, corpus: Corpus) -> str:
    """The id of a run, `<configuration>-<data>`, see `folders`."""
    return f"{config.digest}-{data_digest(corpus)}"


def data_digest(corpus: Corpus) -> str:
    """The part of run ids that names the tables."""
    return corpus.fingerprint[:8]


def is_of_code_here(run_id: str, config: RunConfig) -> bool:
    """Whether a run's configuration still names it; else own code or an encoder's folder has changed or is not here."""
    try:
        return run_id.startswith(f"{config.digest}-")
    except ValueError:  # code without a source, or an encoder that cannot be read
        return False


def is_of_files_here(run_id: str, config: RunConfig, data: str | Path | None = None) -> bool:
    """Whether a run was trained on the data files as they are here; False where they cannot be read."""
    try:
        corpus = read_corpus(config, data)
    except DataError:
        return False
    return run_id.endswith(f"-{data_digest(corpus)}")
