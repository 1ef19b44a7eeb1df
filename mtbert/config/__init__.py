"""RunConfig: everything that decides the numbers of a run; strict, typed, printable, hashable.

`run.py` has the fields, `checks.py` what does not fit together.
"""

from mtbert.config.run import RunConfig
from mtbert.config.values import ConfigError

__all__ = ["ConfigError", "RunConfig"]
