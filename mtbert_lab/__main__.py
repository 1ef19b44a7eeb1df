"""`python -m mtbert_lab`, which is the command `mtbert`."""

from mtbert_lab.cli import main

main()
