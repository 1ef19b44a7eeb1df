"""AdamW as the course states it, and learning-rate schedules.

Source: Kingma and Ba 2015 (the "efficient" step size at the end of their section 2), Loshchilov and Hutter 2017
(decoupled weight decay), paper 000, section 2. The formula printed in 000 has epsilon inside the root; the course's
own reference values, and this code, have it outside.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from inspect import unwrap

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

SCHEDULES = ("none", "linear", "cosine", "onecycle")


class AdamW(Optimizer):
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p -= lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps);
    then p -= lr weight_decay p.

    With `correct_bias=False` the step size is lr alone. Parameters whose gradient is None are left alone, decay
    included. Raises ValueError for a hyper-parameter out of its range, RuntimeError for a sparse gradient.
    """

    # torch wraps these for its compiler, and the first call imports it, which takes a second.
    load_state_dict = unwrap(Optimizer.load_state_dict)
    state_dict = unwrap(Optimizer.state_dict)
    zero_grad = unwrap(Optimizer.zero_grad)

    def __init__(
        self,
        params: Iterable,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
    ) -> None:
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, correct_bias=correct_bias)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict) -> None:
        """Raises ValueError for a hyper-parameter out of its range."""
        _check(self.defaults | param_group)
        unwrap(Optimizer.add_param_group)(self, param_group)

    def __setstate__(self, state: dict) -> None:
        """Also for a state of torch.optim.AdamW, which always corrects the bias and counts steps in tensors."""
        for group in state["param_groups"]:
            if group.get("amsgrad") or group.get("maximize"):
                raise ValueError("the state is of an AdamW with amsgrad or maximize, which this one does not have")
            group.setdefault("correct_bias", True)
            _check(group)
        for moments in state["state"].values():
            moments["step"] = int(moments["step"])
        super().__setstate__(state)

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """One update of every parameter that has a gradient; returns the closure's loss, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_step = defaultdict(list)  # parameters that missed a step have a step count of their own
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_step[self._count(parameter)].append(parameter)
            has_kernel = group["lr"] * group["weight_decay"] < 1  # else the fused kernel would divide by 0
            for parameters in by_step.values():
                if has_kernel and all(_is_dense(parameter, self.state[parameter]) for parameter in parameters):
                    self._update_fused(parameters, group)
                else:
                    for parameter in parameters:
                        self._update(parameter, group)
        return loss

    def _count(self, parameter: Tensor) -> int:
        """The number of the parameter's update that is due; the first one makes its moments."""
        if parameter.grad.is_sparse:
            raise RuntimeError("AdamW needs dense gradients; use Embedding(sparse=False)")
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter)  # m
            state["exp_avg_sq"] = torch.zeros_like(parameter)  # v
        state["step"] += 1
        return state["step"]

    def _update(self, parameter: Tensor, group: dict) -> None:
        """The formula, as it is written."""
        state = self.state[parameter]
        g = parameter.grad
        m, v, t = state["exp_avg"], state["exp_avg_sq"], state["step"]
        lr, (beta1, beta2) = group["lr"], group["betas"]
        step_size = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t) if group["correct_bias"] else lr
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        parameter.addcdiv_(m, v.sqrt().add_(group["eps"]), value=-step_size)
        parameter.mul_(1 - lr * group["weight_decay"])

    def _update_fused(self, parameters: list[Tensor], group: dict) -> None:
        """The same for many parameters with one step count, in one walk over memory.

        torch's kernel computes p *= 1 - lr' wd'; p -= lr' / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps'), which is our
        formula for the lr', wd' and eps' below. Without bias correction t is infinite, and b^t is 0.
        """
        states = [self.state[parameter] for parameter in parameters]
        lr, (beta1, beta2) = group["lr"], group["betas"]
        t, eps = states[0]["step"], group["eps"]
        if group["correct_bias"]:
            eps = eps / math.sqrt(1 - beta2**t)
        else:
            t = math.inf
        decay = 1 - lr * group["weight_decay"]  # ours comes after the step and shrinks the step as well
        # The kernel adds 1 to each. They are filled on the device: a copy would wait for a GPU.
        steps = torch.full((len(parameters),), t - 1.0, device=parameters[0].device)
        adamw(
            parameters,
            grads=[parameter.grad for parameter in parameters],
            exp_avgs=[state["exp_avg"] for state in states],
            exp_avg_sqs=[state["exp_avg_sq"] for state in states],
            max_exp_avg_sqs=[],
            state_steps=list(steps.unbind()),
            fused=True,
            lr=lr * decay,
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"] / decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
        )


def _check(group: dict) -> None:
    """Raises ValueError for a hyper-parameter that is out of its range."""
    for name in ("lr", "eps", "weight_decay"):
        if not 0 <= group[name] < math.inf:
            raise ValueError(f"{name} is {group[name]}; it must be finite and at least 0")
    betas = group["betas"]
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas are {betas}; there are two, both in [0, 1)")


def _is_dense(parameter: Tensor, state: dict) -> bool:
    """Whether torch's kernel can walk over a parameter, its gradient and its moments side by side."""
    tensors = (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"])
    is_contiguous = all(tensor.is_contiguous() for tensor in tensors)
    has_one_type = all(tensor.dtype == parameter.dtype for tensor in tensors)
    return is_contiguous and has_one_type and parameter.is_floating_point()


def make_schedule(optimizer: Optimizer, name: str, total_steps: int, warmup: float = 0.1) -> LRScheduler:
    """A learning-rate schedule over `total_steps` optimizer steps; call its `step()` after each of them.

    'none': constant. 'linear': up over the first `warmup` fraction of the steps, then down to 0.
    'cosine': the same warm-up, then half a cosine to 0. 'onecycle': torch's OneCycleLR with each group's
    learning rate as its peak and torch's defaults, as paper 002 names that class and no argument of it: half a cosine
    up from a 25th of the peak, then half a cosine down to nearly 0. It sets beta1, too, from 0.95 to 0.85 at the peak
    and back. Raises ValueError for an unknown name or a fraction outside [0, 1).
    """
    if name not in SCHEDULES:
        raise ValueError(f"schedule is {name!r}; known are {', '.join(SCHEDULES)}")
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup is {warmup}; it is a fraction of the steps, in [0, 1)")
    if name == "onecycle":
        peaks = [group["lr"] for group in optimizer.param_groups]
        rise = max(warmup, 1e-8)
        if rise * (total_steps + 1) == 1:  # a rise of no steps, by whose length torch divides
            rise *= 1 - 1e-9
        return OneCycleLR(optimizer, max_lr=peaks, total_steps=total_steps + 1, pct_start=rise)
    warmup_steps = round(warmup * total_steps)
    falling_steps = max(1, total_steps - warmup_steps)

    def factor(step: int) -> float:
        if name == "none":
            return 1.0
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        done = (step - warmup_steps) / falling_steps
        if name == "linear":
            return max(0.0, 1 - done)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    return LambdaLR(optimizer, factor)
