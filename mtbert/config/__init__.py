"""RunConfig: everything that decides the numbers of a run; strict, typed, printable, hashable.

The fields are in one file for each concern; a class has those of the file before, and checks its own:
`TaskFields` < `EncoderFields` < `HeadFields` < `StepFields` < `UpdateFields` < `RunConfig`.
"""

from mtbert.config.fields import SOURCES, FieldRow, field_table
from mtbert.config.run import RunConfig, unknown_names
from mtbert.config.values import ConfigError

__all__ = ["SOURCES", "ConfigError", "FieldRow", "RunConfig", "field_table", "unknown_names"]
