"""The papers' claims as a board: the headlines as cards, and one table of all claims to filter and to sort.

What was found comes from a table of `claims.claims_table`. params/claims.yaml says how each claim was checked, which
ones are headlines, and where a claim's runs or numbers are shown.
"""

import html
import math
import re
from pathlib import Path

import pandas as pd

from mtbert.config import ConfigError
from mtbert.paths import REPOSITORY
from mtbert_lab.report.claims import CHECKS, read_claims
from mtbert_lab.report.notebook import SORT
from mtbert_lab.report.plots_sweeps import CLAIM_COLOURS
from mtbert_lab.report.words import TASK_LABELS
from mtbert_lab.statistics import CONTRADICTED, REPRODUCED, count_seeds, interval_text, seeds_text

START = "00_start.ipynb"
QUANTITIES = {
    "overall": "overall score",
    "average": "average score",
    "train_cpu_seconds": "processor time of the training",
}
COLUMNS = ["claim", "paper", "printed", "found", "verdict", "kind", "how it was checked", "shown in"]
FILTERS = ("paper", "verdict", "kind")  # columns with a choice above the table
CARD = """<div class="card" style="border-color: {colour}">
<p><b>{verdict}</b><br><small>paper {paper}, {place}</small></p>
<p><small>The paper {says}</small><br>{claim}{printed}</p>
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
    claims = {_key(claim): claim for claim in listed}
    headlines = _headlines(listed, content["headlines"])
    places = list(headlines)
    rows = []
    for row in table.to_dict("records"):
        claim = claims.get(_key(row), {"check": "none"})
        key = row["paper"], row["claim"]
        rows.append(
            {
                "found": found(row, claim["check"]),
                "words": in_words(row, claim),
                "section": section_of(claim, content["sections"]),
                "matters": headlines.get(key, ""),
                "headline": places.index(key) if key in headlines else float("nan"),
            }
        )
    return table.join(pd.DataFrame(rows, index=table.index))


def _key(claim: dict) -> tuple[str, str, str]:
    return claim["paper"], claim["place"], claim["claim"]


def _headlines(listed: list[dict], entries: list[dict]) -> dict[tuple[str, str], str]:
    """Paper and claim of every headline, in their order, and why it matters."""
    headlines = {}
    for entry in entries:
        if entry.keys() != {"paper", "claim", "matters"}:
            raise ConfigError(f"claims.yaml, headlines: each has paper, claim and matters, got {entry}")
        headlines[entry["paper"], entry["claim"]] = entry["matters"]
    known = {(claim["paper"], claim["claim"]) for claim in listed}
    if unknown := headlines.keys() - known:
        raise ConfigError(f"claims.yaml, headlines: no such claims: {sorted(unknown)}")
    return headlines


def found(row: dict, check: str) -> str:
    """The number of a row with its interval; whether a claim without a number is true."""
    value, low, high = row["our_number"], row["low"], row["high"]
    if pd.isna(value):
        return {REPRODUCED: "true", CONTRADICTED: "not true"}.get(row["verdict"], "–")
    form = _form(check, value)
    if pd.notna(low) and format(low, form) == format(high, form):
        low = high = math.nan
    text = interval_text(value, low, high, form)
    return f"{text} times" if check == "cost" else text


def _form(check: str, value: float) -> str:
    """How a number is written: differences with their sign, counts in full."""
    if check != "arithmetic":
        return CHECKS[check].form
    if float(value).is_integer():
        return ",.0f"
    return ".3f" if abs(value) < 10 else ",.1f"


def in_words(row: dict, claim: dict) -> str:
    """How a claim was checked: what is compared, the seeds, and remarks, without paths of runs."""
    check = claim["check"]
    parts = claim.get(check, "")  # a text, or a list: names of runs, what is claimed of them, the quantity
    words = [_compared(check, parts) if isinstance(parts, list) else parts]
    if pd.notna(row["seeds"]):
        words.append(count_seeds(round(row["seeds"])))
    if row["uses_prior"] is True:
        words.append("seed noise taken from similar runs")
    if isinstance(row["cautious"], str):
        words.append(f"{row['cautious']} if that noise is worth least")
    if row["is_small"] is True:
        words.append("by less than the margin")
    if pd.notna(row["seeds_needed"]):
        words.append(seeds_text(row["seeds_needed"]))
    words.append(claim.get("why"))
    return "; ".join(filter(None, words))


def _compared(check: str, parts: list) -> str:
    if check == "forgetting":
        pairs = [f"{method.partition('/')[2]} against {plain.partition('/')[2]}" for plain, method in parts]
        return CHECKS[check].words.format(pairs="; ".join(pairs))
    names = [str(part).rpartition("/")[2] for part in parts]
    what = QUANTITIES.get(names[-1]) or TASK_LABELS[names[-1]]
    if check == "loss":
        task, _, step = names[-1].rpartition(" at ")
        what = f"{TASK_LABELS[task] if task else 'all tasks'} at step {step}"
    return CHECKS[check].words.format(first=names[0], second=names[-2], what=what)


def section_of(claim: dict, sections: list[list[str]]) -> str:
    """The section of the first pattern that occurs in a claim's check; "" if none does."""
    check = claim["check"]
    parts = claim.get(check, "")
    if isinstance(parts, list):
        parts = " ".join(map(str, parts))
    for pattern, section in sections:
        if re.search(pattern, f"{check} {parts}"):
            return section
    return ""


def link(section: str) -> str:
    """HTML of a link to a section of a notebook; "" where there is none."""
    if not section:
        return ""
    notebook, _, anchor = html.escape(section).partition("#")
    title = anchor.replace("-", " ")
    return f'<a href="{notebook}#{anchor}">{notebook[:2]}: {title}</a>'


def cards(claims: pd.DataFrame) -> str:
    """HTML: a card for each headline of `described`."""
    headlines = claims.dropna(subset="headline").sort_values("headline")
    parts = [_card(row) for row in headlines.to_dict("records")]
    return f'<div class="cards">{"".join(parts)}</div>'


def _card(row: dict) -> str:
    names = ("verdict", "paper", "place", "claim", "found", "words", "matters")
    texts = {name: html.escape(row[name]) for name in names}
    number = row["its_number"]
    printed = f" (printed: <b>{html.escape(number)}</b>)" if isinstance(number, str) else ""
    where = row["section"] or f"{START}#Paper-{row['paper']}"
    colour = CLAIM_COLOURS[row["verdict"]]
    says = "asks or announces" if row["kind"] == "question" else "says"
    return CARD.format(**texts, says=says, printed=printed, colour=colour, link=link(where))


def board(claims: pd.DataFrame) -> str:
    """HTML: a row per claim of `described`, with the columns COLUMNS; a click on a heading sorts it."""
    heads = []
    for name in COLUMNS:
        mark = " data-filter" if name in FILTERS else ""
        heads.append(f"<th{mark}>{name}</th>")
    rows = [f"<tr>{_cells(row)}</tr>" for row in claims.to_dict("records")]
    head = f'<thead title="sort" onclick="{html.escape(SORT)}"><tr>{"".join(heads)}</tr></thead>'
    body = "<tbody>\n{}\n</tbody>".format("\n".join(rows))
    return f'<div class="board"><table class="dataframe">{head}{body}</table></div>'


def _cells(row: dict) -> str:
    texts = {name: html.escape(value) for name, value in row.items() if isinstance(value, str)}
    cells = [
        f"{texts['claim']}<br><small>{texts['place']}</small>",
        f'<a href="{START}#Paper-{texts["paper"]}">{texts["paper"]}</a>',
        texts.get("its_number", "–"),
        texts["found"],
        texts["verdict"],
        texts["kind"],
        texts["words"],
        link(row["section"]),
    ]
    return "".join(f"<td>{cell}</td>" for cell in cells)
