"""torch's private names: one in the library, and those of the dry run."""

import re

from mtbert.paths import REPOSITORY

PRIVATE = re.compile(r"torch(?:\.\w+)*\._(?!_)\w+|from torch[\w.]* import _\w+")


def test_private_names_are_used_in_two_places():
    found = {}
    for package in ("mtbert", "mtbert_lab"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            names = set(PRIVATE.findall(path.read_text(encoding="utf8")))
            if names:
                found[path.relative_to(REPOSITORY).as_posix()] = names
    assert found == {
        "mtbert/bert/cpu_ops.py": {"torch.ops.mkldnn._linear_pointwise"},
        "mtbert_lab/cost/dry_run.py": {"torch._subclasses", "torch.ops.aten._local_scalar_dense"},
    }
