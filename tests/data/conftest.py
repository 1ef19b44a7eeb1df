"""What the tests of data share: tables of texts."""

import pandas as pd
import pytest


@pytest.fixture(scope="session")
def singles():
    """singles(texts): a table of a task of single sentences."""

    def singles(texts: list[str]) -> pd.DataFrame:
        return pd.DataFrame({"id": [f"i{i}" for i in range(len(texts))], "sentence": texts})

    return singles


@pytest.fixture(scope="session")
def pairs():
    """pairs(first, second): a table of a task of pairs."""

    def pairs(first: list[str], second: list[str]) -> pd.DataFrame:
        return pd.DataFrame({"id": [f"i{i}" for i in range(len(first))], "sentence1": first, "sentence2": second})

    return pairs
