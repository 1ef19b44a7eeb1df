"""YAML files of plain values, read strictly: no key twice, numbers written as in NUMBERS."""

import re
import textwrap
from pathlib import Path
from typing import Any

import yaml

from mtbert.names import CONTROL

NUMBERS = {  # YAML's tag -> how such a number is written
    "tag:yaml.org,2002:int": r"-?(0|[1-9][0-9]*)$",
    "tag:yaml.org,2002:float": r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$",
}
MERGE = "tag:yaml.org,2002:merge"  # tag of the key <<, which includes another mapping


class YamlError(ValueError):
    """A file that cannot be read as YAML; the message names it and says why in one line."""


def read_yaml(path: Path) -> Any:
    """The content of a YAML file: plain values, no key of a mapping twice, none with control characters.

    Raises YamlError. A key is often a name that is shown: in a terminal an escape sequence would be obeyed.
    What YAML 1.1 reads as a number, but not NUMBERS, is text: 010, 1:30, 1_0. So is 1e-5, which has no decimal point;
    RunConfig reads such a text as a number.
    """
    if path.exists() and not path.is_file():  # a device or a pipe, which may never end
        raise YamlError(f"{path}: not a regular file")
    try:
        return yaml.load(path.read_text(encoding="utf8"), Loader=_Loader)
    except Exception as error:  # of many types: YAML's own, a date or number that is none, too deep for Python
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise YamlError(f"{path}: not a readable YAML file ({reason})") from error


class _Loader(yaml.SafeLoader):
    """Numbers as in NUMBERS, and no key of a mapping twice."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in NUMBERS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: str) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        texts = set()  # keys as they are written: 5 and '5' are one name of a run
        read = {}  # a key as it is read -> as it is written: 1, 1.0 and true are one key of a dictionary
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            if CONTROL.search(key.value):
                raise yaml.YAMLError(f"the key {key.value!r} has a control character, {node.start_mark}")
            if key.value in texts:
                raise yaml.YAMLError(f"{key.value} is given twice, {node.start_mark}")
            texts.add(key.value)
            value = "=" if key.value == "=" else self.construct_object(key)  # = alone has no value in YAML 1.1
            other = read.setdefault(value, key.value)
            if other != key.value:
                raise yaml.YAMLError(f"{other} and {key.value} are the same key, {node.start_mark}")
        return node


for _tag, _pattern in NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), list("-+.0123456789"))
