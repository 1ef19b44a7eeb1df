"""The files that say which version this is."""

import re

import yaml

from mtbert import __version__
from mtbert.paths import REPOSITORY


def test_citation_and_changes_know_the_version():
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf8"))
    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf8")
    newest = re.search(r"^## (\d\S+) - (\S+)$", changes, re.MULTILINE)
    assert (citation["version"], str(citation["date-released"])) == newest.groups()
    assert citation["version"] == __version__
