"""AdamW as the course states it, and learning-rate schedules.

Source: Kingma and Ba 2015 (the "efficient" step size at the end of their section 2), Loshchilov and Hutter 2017
(decoupled weight decay), paper 000, section 2. The formula printed in 000 has epsilon inside the root; the course's
own reference values, and this code, have it outside.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

CHUNK = 2**18  # elements; parameter, gradient and both moments of a chunk (4 MiB in fp32) stay in the cache

SCHEDULES = ("none", "linear", "cosine", "onecycle")


class AdamW(Optimizer):
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps);
    then p -= lr weight_decay p.

    With `correct_bias=False` the step size is lr alone. Parameters whose gradient is None are left alone, decay
    included. Raises ValueError for a hyper-parameter out of its range, RuntimeError for a sparse gradient.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        if lr < 0:
            raise ValueError(f"lr is {lr}; it must be at least 0")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas are {betas}; both must lie in [0, 1)")
        if eps < 0:
            raise ValueError(f"eps is {eps}; it must be at least 0")
        if weight_decay < 0:
            raise ValueError(f"weight_decay is {weight_decay}; it must be at least 0")
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, correct_bias=correct_bias)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """One update of every parameter that has a gradient; returns the closure's loss, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict) -> None:
        if parameter.grad.is_sparse:
            raise RuntimeError("AdamW needs dense gradients; use Embedding(sparse=False)")
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)  # m
            state["exp_avg_sq"] = torch.zeros_like(parameter)  # v
        state["step"] += 1
        lr, (beta1, beta2), t = group["lr"], group["betas"], state["step"]
        step_size = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t) if group["correct_bias"] else lr

        # One walk over memory: all operations of a chunk happen while it is in the cache.
        tensors = (parameter, state["exp_avg"], state["exp_avg_sq"], parameter.grad)
        whole = not all(tensor.is_contiguous() for tensor in tensors)
        chunks = ((tensor,) if whole else tensor.view(-1).split(CHUNK) for tensor in tensors)
        buffer = torch.empty_like(parameter) if whole else torch.empty_like(parameter.view(-1)[:CHUNK])
        for p, m, v, g in zip(*chunks, strict=True):
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            denominator = torch.sqrt(v, out=buffer if whole else buffer[: v.numel()]).add_(group["eps"])
            p.addcdiv_(m, denominator, value=-step_size)
            if group["weight_decay"]:
                p.mul_(1 - lr * group["weight_decay"])


def make_schedule(optimizer: Optimizer, name: str, total_steps: int, warmup: float = 0.1) -> LRScheduler:
    """A learning-rate schedule over `total_steps` optimizer steps; call its `step()` after each of them.

    'none': constant. 'linear': up over the first `warmup` fraction of the steps, then down to 0.
    'cosine': the same warm-up, then half a cosine to 0. 'onecycle': torch's OneCycleLR with each group's
    learning rate as its peak. Raises ValueError for an unknown name or a fraction outside [0, 1).
    """
    if name not in SCHEDULES:
        raise ValueError(f"schedule is {name!r}; known are {', '.join(SCHEDULES)}")
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup is {warmup}; it is a fraction of the steps, in [0, 1)")
    if name == "onecycle":
        peaks = [group["lr"] for group in optimizer.param_groups]
        return OneCycleLR(optimizer, max_lr=peaks, total_steps=total_steps + 1, pct_start=max(warmup, 1e-8))
    warmup_steps = round(warmup * total_steps)

    def factor(step: int) -> float:
        if name == "none":
            return 1.0
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        done = (step - warmup_steps) / max(1, total_steps - warmup_steps)
        return max(0.0, 1 - done) if name == "linear" else 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    return LambdaLR(optimizer, factor)
