"""Names of runs in words that a reader can say, from words.yaml; a reference has none."""

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
