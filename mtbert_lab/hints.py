"""Errors and reports of the library on the command line: what they say of Python is said of options."""

_ON_THE_COMMAND_LINE = {  # what errors and reports of mtbert say -> what a user of the command writes
    "for one of your own import the file that registers it": "--import FILE.py runs your own",
    "accept_rejects=True": "--accept-rejects",
    "data=FOLDER": "--data",
    "encoder_only=True": "--encoder-only",
    "id_column=": "--id-column ",
    "is_table=True": "--table",
    "nothing is piped in": "nothing is piped in; --text, --file or --out say what to predict",
    "task=...": "--task",
}


def is_own_error(error: BaseException) -> bool:
    """Whether an error is one of mtbert's, whose message tells a user all; of others the traceback is shown."""
    return type(error).__module__.startswith(("mtbert.", "mtbert_lab."))


def for_command_line(message: object) -> str:
    """A message with options in the place of Python's arguments."""
    text = str(message)
    for argument, option in _ON_THE_COMMAND_LINE.items():
        text = text.replace(argument, option)
    return text
