"""The table of the fields of a configuration, which the command and the site show."""

from mtbert_lab.fields import SOURCES, field_table


def test_every_field_says_what_it_is():
    table = field_table()
    assert [row.name for row in table if not row.description] == []
    assert ("feeds", "tuple[str, ...]", "[]") in [row[:3] for row in table]
    assert ("batch_size", "int | dict[str, int]", "32") in [row[:3] for row in table]


def test_fields_name_the_paper_that_proposes_them():
    sources = {row.name: row.source for row in field_table()}
    assert SOURCES.keys() <= sources.keys()
    assert sources["adapter"].startswith("paper 001, section 4.2") and "paper 004" in sources["feeds"]
    assert sources["seed"] == ""
