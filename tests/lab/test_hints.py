"""On the command line messages name options; each hint is of something that the code says."""

import pytest

from mtbert.paths import REPOSITORY
from mtbert_lab.hints import _ON_THE_COMMAND_LINE, for_command_line

FILES = [path for room in ("mtbert", "mtbert_lab") for path in (REPOSITORY / room).rglob("*.py")]
SOURCE = "".join(path.read_text(encoding="utf8") for path in FILES if path.name != "hints.py")


@pytest.mark.parametrize("said", _ON_THE_COMMAND_LINE)
def test_the_code_says_it(said):
    assert said in SOURCE


def test_options_stand_for_arguments():
    message = "go on with accept_rejects=True, or name the folder with data=FOLDER or MTBERT_DATA"
    assert for_command_line(message) == "go on with --accept-rejects, or name the folder with --data or MTBERT_DATA"
