"""Progressive heads: a task's head also sees the logits that other tasks' heads, its upstream heads, give its rows.

Source: paper 004, section 4 (sentiment feeds paraphrase, both feed similarity; upstream weights are frozen while the
fed task trains), and what its section 7 asks for: other feeds, a lower upstream learning rate, attention to combine
the upstream outputs with the input.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def upstream_tasks(feeds: Sequence[str]) -> dict[str, list[str]]:
    """'upstream>task' feeds -> each fed task with the tasks that feed it, in the order written."""
    upstreams: dict[str, list[str]] = {}
    for feed in feeds:
        upstream, task = feed.split(">")
        upstreams.setdefault(task, []).append(upstream)
    return upstreams


def all_upstream(task: str, upstreams: dict[str, list[str]]) -> set[str]:
    """The tasks that feed a task, and those that feed them, and so on; the feeds have no circle."""
    found: set[str] = set()
    for upstream in upstreams.get(task, []):
        found |= {upstream} | all_upstream(upstream, upstreams)
    return found


class UpstreamAttention(nn.Module):
    """The upstream outputs y_u weighted by what a task's own features x ask for: a context c, which joins x.

    q = W_q x, k_u = W_k^u y_u, v_u = W_v^u y_u, all of width w and with biases;
    a = softmax over u of q . k_u / sqrt(w); c = sum_u a_u v_u. With one upstream head a is 1 and c = v_u.
    The weights start as torch's `nn.Linear` does, like those of a head of several layers (`TaskHead`).
    """

    def __init__(self, features: int, outputs: Sequence[int], width: int) -> None:
        super().__init__()
        self.query = nn.Linear(features, width)
        self.keys = nn.ModuleList(nn.Linear(size, width) for size in outputs)
        self.values = nn.ModuleList(nn.Linear(size, width) for size in outputs)

    def forward(self, features: Tensor, outputs: Sequence[Tensor]) -> Tensor:
        """features (B, D), an output (B, size) of each of n upstream heads -> context (B, w)."""
        keys = [W_k(y) for W_k, y in zip(self.keys, outputs, strict=True)]
        values = [W_v(y) for W_v, y in zip(self.values, outputs, strict=True)]
        q = self.query(features)  # (B, w)
        k = torch.stack(keys, dim=1)  # (B, n, w)
        v = torch.stack(values, dim=1)  # (B, n, w)
        scores = k @ q.unsqueeze(-1) / math.sqrt(q.size(-1))  # (B, n, 1)
        a = scores.softmax(dim=1)  # (B, n, 1)
        return (a * v).sum(1)  # (B, w)
