"""Parts of a step that do not wait for each other, side by side on a GPU."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def side_by_side(jobs: Sequence[Callable[[], Result]], inputs: Iterable[Tensor] = ()) -> list[Result]:
    """The results of jobs that do not depend on each other, in their order. A job may call this again.

    While a CUDA graph is captured each job has a stream of its own, and with it a branch of the graph: the kernels of
    one small batch leave most of a GPU idle. The backward pass of an operation runs on the operation's stream.
    Elsewhere the jobs run one after the other, which gives the same bits.

    inputs: tensors of the caller that jobs keep for the backward pass, but for parameters and what outlives the graph.
    """
    is_captured = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
    if len(jobs) == 1 or not is_captured:
        return [job() for job in jobs]
    main = torch.cuda.current_stream()
    branches = [_branch(main, number) for number in range(len(jobs))]
    for tensor in inputs:
        for branch in branches:
            tensor.record_stream(branch)  # freed in the backward pass, its memory is not used again while this reads it
    results = []
    for job, branch in zip(jobs, branches, strict=True):
        branch.wait_stream(main)
        with torch.cuda.stream(branch):
            results.append(job())
    for branch in branches:
        main.wait_stream(branch)
    return results


@functools.cache
def _branch(main: torch.cuda.Stream, number: int) -> torch.cuda.Stream:
    """The stream of the jobs of this number that another stream starts.

    It is the same in all graphs, as free memory is kept by stream. Jobs inside of a job have streams of their own, or
    they would share the memory of an outer job that does not wait for them.
    """
    return torch.cuda.Stream(main.device)
