"""The papers' claims as a board: the headlines as cards, and one table of all claims to filter and to sort.

What was found comes from a table of `claims.claims_table`. params/claims.yaml says how each claim was checked, which
ones are headlines, and where a claim's runs or numbers are shown.
"""

import html
import re
from pathlib import Path

import pandas as pd

from mtbert.config import ConfigError
from mtbert.paths import REPOSITORY
from mtbert.report.claims import read_claims
from mtbert.report.notebook import SORT
from mtbert.report.plots import TASK_LABELS
from mtbert.report.plots_sweeps import CLAIM_COLOURS
from mtbert.statistics import CONTRADICTED, REPRODUCED, count_seeds

START = "00_start.ipynb"
QUANTITIES = {
    "overall": "overall score",
    "average": "average score",
    "parameters": "parameters",
    "train_cpu_seconds": "processor time of the training",
}
COMPARED = {  # a check of two runs, in words
    "difference": "{first} minus {second}, {what}",
    "gap": "{first} minus {second}, {what}: score on training rows minus score on dev",
    "loss": "{first} minus {second}, training loss at step {what}",
    "cost": "{first} divided by {second}, {what}",
}
COLUMNS = ["claim", "paper", "printed", "found", "verdict", "kind", "how it was checked", "shown in"]
FILTERS = ("paper", "verdict", "kind")  # columns with a choice above the table
CARD = """<div class="card" style="border-color: {colour}">
<p><b>{verdict}</b><br><small>paper {paper}, {place}</small></p>
<p><small>The paper says</small><br>{claim}{printed}</p>
<p><small>Found</small><br><b>{found}</b><br>{words}</p>
<p><small>Why it matters</small><br>{matters}</p>
<p><small>{link}</small></p>
</div>"""


def described(table: pd.DataFrame, params: Path = REPOSITORY / "params") -> pd.DataFrame:
    """A table of claims with the columns found, words (how a claim was checked), section, matters and headline.

    params: the folder of claims.yaml. section: such as 04_x.ipynb#2-Adapters, "" where no section shows the claim;
    headline: the place among the headlines, else nan; matters: why a headline matters, else "". Raises ConfigError for
    a headline that is no claim, or has other fields.
    """
    listed, content = read_claims(params)
    claims = {(claim["paper"], claim["place"], claim["claim"]): claim for claim in listed}
    if wrong := [entry for entry in content["headlines"] if entry.keys() != {"paper", "claim", "matters"}]:
        raise ConfigError(f"claims.yaml, headlines: each has paper, claim and matters, got {wrong[0]}")
    headlines = {(entry["paper"], entry["claim"]): entry["matters"] for entry in content["headlines"]}
    if unknown := headlines.keys() - {(claim["paper"], claim["claim"]) for claim in listed}:
        raise ConfigError(f"claims.yaml, headlines: no such claims: {sorted(unknown)}")
    rows = []
    for row in table.to_dict("records"):
        claim = claims.get((row["paper"], row["place"], row["claim"]), {"check": "none"})
        key = row["paper"], row["claim"]
        about = {"found": found(row, claim["check"]), "words": in_words(row, claim)}
        about |= {"section": section_of(claim, content["sections"]), "matters": headlines.get(key, "")}
        about["headline"] = list(headlines).index(key) if key in headlines else float("nan")
        rows.append(about)
    return table.join(pd.DataFrame(rows, index=table.index))


def found(row: dict, check: str) -> str:
    """The number of a row with its interval; of a claim without a number whether it is true."""
    value, *ends = (row[name] for name in ("our_number", "low", "high"))
    if pd.isna(value):
        return {REPRODUCED: "true", CONTRADICTED: "not true"}.get(row["verdict"], "–")
    form = "{:+.3f}" if check in ("difference", "gap", "loss") else "{:.3f}"
    if check == "arithmetic":
        form = "{:,.0f}" if float(value).is_integer() else "{:.3f}" if abs(value) < 10 else "{:,.1f}"
    shown, low, high = (form.format(number) for number in (value, *ends))
    text = shown if low == high or pd.isna(row["low"]) else f"{shown} ({low} to {high})"
    return f"{text} times" if check == "cost" else text


def in_words(row: dict, claim: dict) -> str:
    """How a claim was checked: what is compared, the seeds, and remarks, without paths of runs."""
    parts = claim.get(claim["check"], "")
    names = [str(part).rpartition("/")[2] for part in parts]
    what = ""
    if isinstance(parts, list):
        what = QUANTITIES.get(names[-1]) or TASK_LABELS.get(names[-1], names[-1])
    if claim["check"] in COMPARED:
        words = [COMPARED[claim["check"]].format(first=names[0], second=names[2], what=what)]
    elif claim["check"] == "score":
        words = [f"{names[0]}, {what}: another encoder, fewer steps"]
    else:
        words = [parts]
    if pd.notna(row["seeds"]):
        words.append(count_seeds(round(row["seeds"])))
    if row["is_lent"] is True:
        words.append("seed noise taken from runs that are alike")
    if isinstance(row["cautious"], str):
        words.append(f"{row['cautious']} if that noise is worth least")
    if row["verdict"] in (REPRODUCED, CONTRADICTED) and {"greater", "smaller"} & set(parts):
        words += ["by less than the margin"] if max(abs(row["low"]), abs(row["high"])) < row["margin"] else []
    return "; ".join(filter(None, [*words, claim.get("why")]))


def section_of(claim: dict, sections: list[list[str]]) -> str:
    """The section of the first pattern that occurs in a claim's check."""
    parts = claim.get(claim["check"], "")
    text = " ".join(map(str, [claim["check"], *(parts if isinstance(parts, list) else [parts])]))
    return next((section for pattern, section in sections if re.search(pattern, text)), "")


def link(section: str) -> str:
    """HTML of a link to a section of a notebook; "" where there is none."""
    notebook, _, anchor = html.escape(section).partition("#")
    return f'<a href="{notebook}#{anchor}">{notebook[:2]}: {anchor.replace("-", " ")}</a>' if section else ""


def cards(claims: pd.DataFrame) -> str:
    """HTML: a card for each headline of `described`."""
    rows = claims.dropna(subset="headline").sort_values("headline").to_dict("records")
    return f'<div class="cards">{"".join(map(_card, rows))}</div>'


def _card(row: dict) -> str:
    printed = f" (<b>{row['its_number']}</b>)" if isinstance(row["its_number"], str) else ""
    names = ("verdict", "paper", "place", "claim", "found", "words", "matters")
    texts = {name: html.escape(row[name]) for name in names}
    where = row["section"] or f"{START}#Paper-{row['paper']}"
    return CARD.format(**texts, printed=printed, colour=CLAIM_COLOURS[row["verdict"]], link=link(where))


def board(claims: pd.DataFrame) -> str:
    """HTML: a row per claim of `described`, with the columns COLUMNS; a click on a heading sorts it."""
    marked = {name: " data-filter" if name in FILTERS else "" for name in COLUMNS}
    head = "".join(f"<th{mark}>{name}</th>" for name, mark in marked.items())
    body = "\n".join(f"<tr>{_cells(row)}</tr>" for row in claims.to_dict("records"))
    thead = f'<thead title="sort" onclick="{html.escape(SORT)}"><tr>{head}</tr></thead>'
    return f'<div class="board"><table class="dataframe">{thead}<tbody>\n{body}\n</tbody></table></div>'


def _cells(row: dict) -> str:
    paper = f'<a href="{START}#Paper-{row["paper"]}">{row["paper"]}</a>'
    claim, place, words = (html.escape(row[name]) for name in ("claim", "place", "words"))
    printed = row["its_number"] if isinstance(row["its_number"], str) else "–"
    cells = [f"{claim}<br><small>{place}</small>", paper, printed, row["found"], row["verdict"], row["kind"], words]
    return "".join(f"<td>{cell}</td>" for cell in [*cells, link(row["section"])])
