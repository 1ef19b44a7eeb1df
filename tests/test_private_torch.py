"""torch's private names in the library: one, in one place, and what is lost where a later torch has it no more."""

import re

import pytest
import torch
import torch.nn.functional as F

from mtbert.bert import cpu_ops
from mtbert.paths import REPOSITORY

PRIVATE = re.compile(r"torch(?:\.\w+)*\._(?!_)\w+|from torch[\w.]* import _\w+")


def test_one_private_name_is_used_in_one_place():
    found = {}
    for path in sorted((REPOSITORY / "mtbert").rglob("*.py")):
        names = set(PRIVATE.findall(path.read_text(encoding="utf8")))
        if names:
            found[path.relative_to(REPOSITORY).as_posix()] = names
    assert found == {"mtbert/bert/cpu_ops.py": {"torch.ops.mkldnn._linear_pointwise"}}


def test_the_product_of_onednn_is_there_with_these_arguments():
    """Where this fails, products of float32 on AMD's processors with AVX-512 take torch's own path: twice the time."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch is built without oneDNN")
    assert cpu_ops.HAS_PRODUCT, "torch.ops.mkldnn._linear_pointwise is gone"
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 5, 16), torch.randn(8, 16), torch.randn(8)
    torch.testing.assert_close(cpu_ops._product(x, weight, bias), F.linear(x, weight, bias))
