"""How many of the papers' claims have which verdict; a fact that several of them state counts once."""

from typing import Any

import numpy as np
import pandas as pd

from mtbert_lab.report.claims import NOT_MEASURED, OF_RUNS
from mtbert_lab.statistics import CONTRADICTED, NO_DIFFERENCE, REPRODUCED, TOO_FEW


def facts(table: pd.DataFrame) -> pd.DataFrame:
    """The claims that runs are compared with, those of one fact in one row, which has the least favourable verdict."""
    of_runs = table["run_ids"].notna() & table["verdict"].isin(OF_RUNS)
    table = table[of_runs]
    order = table["verdict"].map(OF_RUNS.index)
    name = table["fact"].where(table["fact"].notna(), table.index.astype(str))  # else a claim is a fact by itself
    table = table.assign(order=order, name=name).sort_values("order", kind="stable")
    return table.drop_duplicates("name").sort_index()


def findings_checked(claims: pd.DataFrame) -> dict[str, Any]:
    """The places of a sentence on the papers' findings that runs check, from `claims_table`.

    Their count, and how many are reproduced, contradicted, equal, or have too few runs, for many of which (hopeless) no
    number of runs that is worth its time would do. small and small_contradicted: those of the first two by less than
    the margin; names: which are contradicted; waiting: how many have no run yet.
    """
    checked = facts(claims)
    checked = checked[checked["kind"] == "finding"]
    waiting = claims[(claims["kind"] == "finding") & (claims["verdict"] == NOT_MEASURED)]
    waiting = waiting["fact"].fillna(waiting["claim"])
    counts = checked["verdict"].value_counts().reindex(OF_RUNS, fill_value=0)
    small = checked.loc[checked["is_small"].eq(True), "verdict"].value_counts().reindex(OF_RUNS, fill_value=0)
    names = checked.loc[checked["verdict"] == CONTRADICTED, "claim"]
    return {
        "count": len(checked),
        "reproduced": counts[REPRODUCED],
        "small": small[REPRODUCED],
        "contradicted": counts[CONTRADICTED],
        "small_contradicted": small[CONTRADICTED],
        "names": "; ".join(f"*{name}*" for name in names) or "none",
        "equal": counts[NO_DIFFERENCE],
        "few": counts[TOO_FEW],
        "hopeless": int(np.isinf(checked["seeds_needed"]).sum()),
        "waiting": waiting[~waiting.isin(checked["fact"])].nunique(),
    }


def by_verdict(claims: pd.DataFrame) -> pd.DataFrame:
    """How many of `claims_table` have each verdict: a row per kind of check, a column per verdict, and all.

    A fact that several claims state counts once; printed numbers and statements that arithmetic checks count each.
    """
    compared = facts(claims)
    is_finding = compared["kind"] == "finding"
    is_checked = claims["verdict"].isin(OF_RUNS)
    kinds = {
        "findings of the papers, by our runs": compared[is_finding],
        "baselines, questions, recommendations and checks of ours, by our runs": compared[~is_finding],
        "printed numbers and statements, checked by arithmetic": claims[(claims["kind"] == "slip") & is_checked],
    }
    counts = pd.DataFrame({name: part["verdict"].value_counts() for name, part in kinds.items()})
    counts = counts.T.reindex(columns=OF_RUNS[::-1]).fillna(0).astype(int)
    return counts.assign(all=counts.sum(axis=1)).rename_axis(index="checked", columns=None)


def unchecked(claims: pd.DataFrame) -> str:
    """One sentence: how many claims were not compared, and why; empty where all were."""
    others = claims.loc[~claims["verdict"].isin(OF_RUNS), "verdict"].value_counts()
    listed = ", ".join(f"{count} {verdict}" for verdict, count in others.items())
    return f"Claims that were not compared, each counted: {listed}." if len(others) else ""
