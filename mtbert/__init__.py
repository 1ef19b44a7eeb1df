"""mtbert: minBERT and the ways of sharing it between tasks, as a thin package under a notebook report."""

__version__ = "0.10.0"
