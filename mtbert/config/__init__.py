"""RunConfig: everything that decides the numbers of a run; strict, typed, printable, hashable.

`run.py` has the fields, `checks.py` what does not fit together, `fields.py` the table that users read.
"""

from mtbert.config.fields import SOURCES, field_table
from mtbert.config.run import RunConfig, unknown_names
from mtbert.config.values import ConfigError

__all__ = ["SOURCES", "ConfigError", "RunConfig", "field_table", "unknown_names"]
