"""`python -m mtbert`."""

from mtbert.cli import main

main()
