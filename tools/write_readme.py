"""Writes the sentences and tables of what was found into README.md, between `<!-- NAME -->` and `<!-- end -->`.

`python tools/write_readme.py`, in the root of a checkout: from the committed runs, unless MTBERT_RESULTS names others.
"""

import os
import re
from pathlib import Path

from mtbert.paths import REPOSITORY
from mtbert_lab.report import findings
from mtbert_lab.report.sentences import told
from mtbert_lab.report.tables import compare, read_runs


def write_tables(readme: Path = REPOSITORY / "README.md") -> Path:
    """Write box and tables of the README again; returns its path. Raises ValueError for a mark that names none."""
    tables = _tables()

    def table(match: re.Match) -> str:
        name = match[1]
        if name not in tables:
            raise ValueError(f"{readme.name}: <!-- {name} --> names no table; known are {', '.join(tables)}")
        return f"<!-- {name} -->\n{tables[name]}\n<!-- end -->"

    text = readme.read_text(encoding="utf8")
    text = re.sub(r"<!-- ([a-z ]+) -->\n.*?\n<!-- end -->", table, text, flags=re.DOTALL)
    readme.write_text(text, encoding="utf8")
    return readme


def _tables() -> dict[str, str]:
    """Name -> the table or sentences of the README, in Markdown."""
    hybrids = read_runs("cpu", "hybrids")
    return {
        "recommendation": told(findings.recommendation),
        "limits": told(findings.limits),
        "findings": findings.box(),
        "plans": findings.plan_differences(compare(hybrids, "plan")),
    }


if __name__ == "__main__":
    os.environ.setdefault("MTBERT_RESULTS", str(REPOSITORY / "results"))
    print(write_tables())
