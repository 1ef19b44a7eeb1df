"""The board of claims: what its cards and its table say, and where its links lead."""

import html
import math
import re

import pandas as pd
import pytest
import yaml

from mtbert.config import ConfigError
from mtbert.paths import REPOSITORY
from mtbert_lab.report import board

PARAMS = REPOSITORY / "params"


@pytest.fixture(scope="module")
def claims() -> pd.DataFrame:
    """The stored table of claims, described."""
    table = pd.read_csv(REPOSITORY / "results" / "claims.csv", dtype={"paper": str, "its_number": str})
    return board.described(table)


def test_every_link_of_a_claim_leads_to_a_heading(claims, headings_of):
    """As JupyterLab links the headings of the notebooks."""
    headings = set()
    for path in (REPOSITORY / "notebooks").glob("*.ipynb"):
        headings |= {f"{path.name}#{heading.replace(' ', '-')}" for heading in headings_of(path)}
    sections = [section for _, section in yaml.safe_load((PARAMS / "claims.yaml").read_text())["sections"]]
    assert set(sections) <= headings
    links = re.findall(r'href="(.+?)"', board.board(claims) + board.cards(claims))
    assert set(map(html.unescape, links)) <= headings
    of_runs = claims[claims["run_ids"].notna()]
    assert of_runs.loc[of_runs["section"] == "", "claim"].tolist() == [], "what runs decide is shown somewhere"


def test_a_claim_is_shown_where_its_runs_are(claims):
    section = claims.set_index("claim")["section"]
    assert section["PALs lower the average, annealed sampling, in a quarter of the steps"].endswith("#5-Other-changes")
    assert section["with PALs proportional beats annealed sampling"].endswith("#4-Sampling")
    assert section["one sequence with both sentences is best (STS)"].endswith("#3-One-sequence-or-two")
    assert section["a BERT model has 127 million parameters"].endswith("#1-Sharing-plans")
    assert section["every sampler with PALs scores below every sampler without, by its own Table 1"] == ""


def test_there_are_ten_headlines_in_their_order(claims):
    listed = yaml.safe_load((PARAMS / "claims.yaml").read_text())["headlines"]
    cards = board.cards(claims)
    assert len(listed) == cards.count('class="card"') == 10
    assert re.findall(r"Why it matters</small><br>(.+?)</p>", cards) == [
        entry["matters"].replace("'", "&#x27;") for entry in listed
    ]
    assert re.search(r"hybrid-bert, which shares .+? \(printed: <b>0\.000</b>\)</p>", cards), "the printed number"
    assert cards.count("paper 002") < len(cards.split("<small>paper")) - 1, "other papers have headlines, too"


def test_how_a_claim_was_checked_is_said_without_paths(claims):
    grids = {path.stem for path in (PARAMS / "cpu").glob("[a-z]*.yaml")}
    assert not [words for words in claims["words"] if any(f"{grid}/" in words for grid in grids)]
    words = claims.set_index("claim")["words"]
    assert words["PCGrad brings no noticeable gain in accuracy to 1-bert"].startswith(
        "1-bert, PCGrad minus 1-bert, overall"
    )
    assert words["3-bert takes longer to train than 1-bert"].startswith(
        "3-bert divided by 1-bert, PCGrad, processor time"
    )


def row(**changes) -> dict:
    fields = {"paper": "000", "place": "Table 1", "claim": "a < b", "kind": "finding", "its_number": math.nan}
    fields |= dict.fromkeys(("our_number", "low", "high", "margin", "seeds", "uses_prior"), math.nan)
    fields |= dict.fromkeys(("is_small", "seeds_needed", "cautious"), math.nan)
    return fields | {"verdict": "reproduced"} | changes


def test_what_was_found_has_its_interval():
    interval = dict(our_number=0.0121, low=0.0019, high=0.0204)
    assert board.found(row(**interval), "difference") == "+0.012 (+0.002 to +0.020)"
    assert board.found(row(our_number=1.1, low=0.9, high=1.3), "cost") == "1.100 (0.900 to 1.300) times"
    assert board.found(row(our_number=8544, low=8544, high=8544), "arithmetic") == "8,544"
    assert board.found(row(), "arithmetic") == "true"
    assert board.found(row(verdict="contradicted"), "arithmetic") == "not true"
    assert board.found(row(verdict="cannot be checked"), "none") == "–"


def test_words_say_seeds_loans_and_small_differences():
    claim = {"check": "difference", "difference": ["hybrids/a", "greater", "hybrids/b", "sst"], "why": "as seen"}
    about = dict(seeds=1, uses_prior=True, is_small=True, cautious="too few runs to tell")
    assert board.in_words(row(**about), claim) == (
        "a minus b, SST; 1 seed; seed noise taken from similar runs; too few runs to tell if that noise is "
        "worth least; by less than the margin; as seen"
    )
    few = board.in_words(row(verdict="too few runs to tell", seeds=3, seeds_needed=7.0), claim)
    assert few == "a minus b, SST; 3 seeds; 7 seeds would tell; as seen"
    assert board.in_words(row(low=0.001, high=0.03, margin=0.02, seeds=3), claim) == "a minus b, SST; 3 seeds; as seen"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"paper": "000", "claim": "no such", "matters": "x"}, "no such"),
        ({"paper": "000", "claim": "a < b"}, "paper, claim and matters"),
    ],
)
def test_a_wrong_headline_is_refused(tmp_path, entry, message):
    claims = {"000": {"Table 1": [{"claim": "a < b", "none": "so"}]}}
    content = {"not_comparable": "", "headlines": [entry], "sections": [], "claims": claims}
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=message):
        board.described(pd.DataFrame([row()]), tmp_path)


def test_texts_are_escaped():
    described = row(found="true", words="a < b", section="", matters="x < y", headline=0)
    for text in (board.board(pd.DataFrame([described])), board.cards(pd.DataFrame([described]))):
        assert "a &lt; b" in text and "a < b" not in text
