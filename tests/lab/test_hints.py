"""On the command line the library's messages name options; each hint is of something that the library says."""

from pathlib import Path

import pytest

import mtbert
from mtbert_lab.hints import _ON_THE_COMMAND_LINE, for_command_line

SOURCE = "".join(path.read_text(encoding="utf8") for path in Path(mtbert.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("said", _ON_THE_COMMAND_LINE)
def test_the_library_says_it(said):
    assert said in SOURCE


def test_options_stand_for_arguments():
    message = "go on with accept_rejects=True, or name the folder with data=FOLDER or MTBERT_DATA"
    assert for_command_line(message) == "go on with --accept-rejects, or name the folder with --data or MTBERT_DATA"
