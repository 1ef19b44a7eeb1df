"""`python -m mtbert_lab`, which is the command `mtbert`."""

import sys


def main() -> None:
    """The command, or a line that says what to install for it where the library is installed alone."""
    try:
        from mtbert_lab.cli import main as command
    except ModuleNotFoundError as error:
        if error.name.startswith("mtbert"):
            raise
        sys.exit(f"error: {error.name} is not installed; the command needs pip install 'mtbert[lab]'")
    command()


if __name__ == "__main__":
    main()
