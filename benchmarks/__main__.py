"""`python -m benchmarks`, in the root of a checkout, is `mtbert bench`."""

import sys

from mtbert_lab.cli import app

app(["bench", *sys.argv[1:]])
