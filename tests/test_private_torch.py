"""torch's private names: one in the library, and those of the dry run; what is lost where a later torch lacks them."""

import re

import pytest
import torch
import torch.nn.functional as F

from mtbert.bert import cpu_ops
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


def test_the_product_of_onednn_is_there_with_these_arguments():
    """Where this fails, products of float32 on AMD's processors with AVX-512 take torch's own path: twice the time."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch is built without oneDNN")
    assert cpu_ops.HAS_PRODUCT, "torch.ops.mkldnn._linear_pointwise is gone"
    torch.manual_seed(0)
    x, weight, bias = torch.randn(3, 5, 16), torch.randn(8, 16), torch.randn(8)
    torch.testing.assert_close(cpu_ops._product(x, weight, bias), F.linear(x, weight, bias))
