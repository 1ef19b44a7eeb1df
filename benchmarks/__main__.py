"""`python -m benchmarks`, in the root of a checkout, is `mtbert bench`; `python -m benchmarks gpu` is gpu.py."""

import sys

if sys.argv[1:2] == ["gpu"]:  # it needs few packages, and no command line of ours
    from benchmarks.gpu import main

    sys.exit(main(sys.argv[2:]))

from mtbert_lab.cli import app

app(["bench", *sys.argv[1:]])
