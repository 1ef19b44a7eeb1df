"""Parts of a step that do not wait for each other, side by side on a GPU."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def side_by_side(jobs: Sequence[Callable[[], Result]], inputs: Iterable[Tensor] = ()) -> list[Result]:
    """The results of jobs that do not depend on each other, in their order; inputs: tensors that they read.

    While a CUDA graph is captured each job has a stream of its own, and with it a branch of the graph: the kernels of
    one small batch leave most of a GPU idle. The backward pass of an operation runs on the operation's stream.
    Elsewhere the jobs run one after the other, which gives the same bits.
    """
    is_captured = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    if len(jobs) == 1 or not is_captured:
        return [job() for job in jobs]
    main = torch.cuda.current_stream()
    branches = [_branch(main.device_index, number) for number in range(len(jobs))]
    for tensor in inputs:
        for branch in branches:
            tensor.record_stream(branch)  # else its memory may serve another kernel while this branch reads it
    results = []
    for job, branch in zip(jobs, branches, strict=True):
        branch.wait_stream(main)
        with torch.cuda.stream(branch):
            results.append(job())
    for branch in branches:
        main.wait_stream(branch)
    return results


@functools.cache
def _branch(device: int, number: int) -> torch.cuda.Stream:
    """A stream for the jobs of this number, the same one in all graphs: free memory is kept by stream."""
    return torch.cuda.Stream(device)
