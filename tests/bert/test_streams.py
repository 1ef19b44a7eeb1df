"""Jobs side by side; tests of whole steps as graphs are in tests/training/test_graphs.py."""

from functools import partial

import pytest
import torch
from torch import Tensor

from mtbert.bert import side_by_side


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_jobs_of_a_graph_have_streams_of_their_own():
    x = torch.ones(4, device="cuda")
    streams = set()

    def job(factor: float) -> Tensor:
        streams.add(torch.cuda.current_stream().cuda_stream)
        return x * factor

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = side_by_side([partial(job, 2.0), partial(job, 3.0)], [x])
        total = sum(results)
        streams.add(torch.cuda.current_stream().cuda_stream)
    x.fill_(5.0)
    graph.replay()
    assert total.tolist() == [25.0] * 4
    assert len(streams) == 3
