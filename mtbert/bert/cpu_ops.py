"""Linear layers, dropout and attention on a CPU, faster than torch's.

torch computes products in float32 with MKL, which uses AVX-512 on Intel's processors alone; oneDNN, which is also part
of torch, takes half the time on AMD's. Without AVX-512, products in bfloat16 take torch many times as long as those in
float32, by which they are computed here. torch draws one Bernoulli variable for each element of a dropout mask; here
each element takes 16 random bits. torch has no fused attention with dropout on a CPU, and its fused backward pass in
bfloat16 is slower there than matrix products. On a GPU torch's own operations are called, and in evaluation its
attention.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from mtbert.bert.batch import Mask
from mtbert.runtime import from_proc

RESOLUTION = 2**16  # a dropout probability is rounded to a multiple of 1 / RESOLUTION
IS_AMD = from_proc("cpuinfo", "vendor_id") == "AuthenticAMD"
CAPABILITY = torch.backends.cpu.get_cpu_capability()
WITHOUT_BFLOAT16 = CAPABILITY == "AVX2"  # no fast products of it
# The one private operation of torch in this library; without it products are torch's own. Its public callers are
# compiled models alone.
HAS_PRODUCT = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
ONEDNN = IS_AMD and CAPABILITY == "AVX512" and HAS_PRODUCT


class Linear(nn.Linear):
    """`nn.Linear`, computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W' + b: x (..., n), weight (m, n), bias (m,) -> (..., m).

    float32 takes oneDNN on AMD with AVX-512; bfloat16 of autocast is computed in float32 without AVX-512.
    """
    has_rows = x.dim() > 1 and x.numel() > 0  # which our backward passes need
    if x.device.type != "cpu" or not has_rows:
        return F.linear(x, weight, bias)
    if torch.is_autocast_enabled("cpu"):
        if WITHOUT_BFLOAT16 and torch.get_autocast_dtype("cpu") == torch.bfloat16:
            return _Bfloat16Linear.apply(x, weight, bias)
    elif ONEDNN and x.dtype == weight.dtype == torch.float32:
        return _Linear.apply(x, weight, bias)
    return F.linear(x, weight, bias)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W' + b in float32, by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _rounded_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W' + b in bfloat16, multiplied and added in float32."""
    bias = None if bias is None else bias.float()
    return F.linear(x.float(), weight.float(), bias).bfloat16()


def _gradients(
    ctx, gradient: Tensor, product: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of x, W and b, from that of x W' + b; ctx has saved x and W."""
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad
    rows = gradient.flatten(end_dim=-2)  # (N, m)
    of_x = of_weight = of_bias = None
    if needs_x:
        of_x = product(gradient, weight.t())
    if needs_weight:
        inputs = x.flatten(end_dim=-2)  # (N, n)
        of_weight = product(rows.t(), inputs.t())
    if needs_bias:
        of_bias = rows.sum(0)
    return of_x, of_weight, of_bias


class _Linear(torch.autograd.Function):
    """`_product` with its derivatives; `setup_context` makes it work in `torch.func.grad`, too."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _product(x, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        def product(x: Tensor, weight: Tensor) -> Tensor:  # so that the gradient has a derivative, too
            return _Linear.apply(x, weight, None)

        return _gradients(ctx, gradient, product)


class _Bfloat16Linear(torch.autograd.Function):
    """`F.linear` under autocast, whose numbers differ by the order of sums."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.bfloat16)
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _rounded_product(x, weight, bias)

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, gradient, _rounded_product)


class Dropout(nn.Dropout):
    """`nn.Dropout`; the mask on a CPU is drawn by `keep_mask`."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Zero each element with probability p and scale the others by 1 / (1 - p): any shape -> the same shape."""
    if x.device.type != "cpu" or not 0 < round(p * RESOLUTION) < RESOLUTION:
        return F.dropout(x, p, training)
    if not training:
        return x
    keep = keep_mask(x.shape, p)
    scale = RESOLUTION / (RESOLUTION - round(p * RESOLUTION))
    return _Dropout.apply(x, keep, scale)


def keep_mask(shape: torch.Size, p: float) -> Tensor:
    """A bool mask, False with probability p, rounded to 1 / RESOLUTION; one draw from torch's generator seeds it."""
    count = shape.numel()
    seed = int(torch.randint(2**63 - 1, ()))
    words = np.random.SFC64(seed).random_raw(math.ceil(count / 4))  # 64 bits, four elements
    draws = words.view(np.int16)[:count]  # uniform from -RESOLUTION / 2 on
    is_kept = draws >= round(p * RESOLUTION) - RESOLUTION // 2
    return torch.from_numpy(is_kept).view(shape)


def _masked(x: Tensor, keep: Tensor, scale: float) -> Tensor:
    """x * keep * scale; torch converts int8 to floats three times as fast as bool."""
    mask = keep.view(torch.int8).to(x.dtype)
    return mask.mul_(x).mul_(scale)


class _Dropout(torch.autograd.Function):
    """x * keep * scale; keep has no derivative."""

    @staticmethod
    def forward(x: Tensor, keep: Tensor, scale: float) -> Tensor:
        return _masked(x, keep, scale)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        _, keep, scale = inputs
        ctx.save_for_backward(keep)
        ctx.scale = scale

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return _masked(gradient, keep, ctx.scale), None, None


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask, dropout_p: float) -> Tensor:
    """softmax(Q K' / sqrt(d_k) + mask) V, dropout on the softmax: each (B, h, T, d_k) -> (B, h, T, d_k).

    With a graph on a CPU, scores are float32 or float64, also under autocast. The result has the type of q.
    """
    given = q.dtype
    has_graph = torch.is_grad_enabled() and q.requires_grad
    exact = torch.promote_types(q.dtype, torch.float32)  # float64 stays
    is_plain = dropout_p == 0 and q.dtype == exact
    if q.device.type != "cpu" or not has_graph or is_plain:
        if q.device.type == "cpu" and WITHOUT_BFLOAT16:
            q, k, v = q.to(exact), k.to(exact), v.to(exact)
        if mask is not None and mask.is_floating_point():
            mask = mask.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p).to(given)
    B, h, T, d_k = q.shape

    def by_head(part: Tensor) -> Tensor:  # (B, h, T, d_k) -> (B h, T, d_k)
        return part.to(exact, memory_format=torch.contiguous_format).reshape(B * h, T, d_k)

    with torch.autocast("cpu", enabled=False):
        q, k, v = by_head(q), by_head(k), by_head(v)
        scores = torch.bmm(q * d_k**-0.5, k.transpose(1, 2))  # (B h, T, T)
        scores = scores.view(B, h, T, T)
        if mask is not None and mask.is_floating_point():
            scores += mask.to(exact)
        elif mask is not None:
            lowest = torch.finfo(exact).min
            scores += torch.zeros(mask.shape, dtype=exact).masked_fill_(~mask, lowest)
        weights = dropout(scores.softmax(-1), dropout_p)
        context = torch.bmm(weights.view(B * h, T, T), v)  # (B h, T, d_k)
        return context.view(B, h, T, d_k).to(given)
