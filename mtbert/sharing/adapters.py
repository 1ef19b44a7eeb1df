"""Adapters: the few parameters that a task has to itself inside the layers of an encoder.

Source: papers 001 (section 4.2, equations 6 and 7) and 003 (section 2.2.1, equations 1 and 2) for projected attention
layers; the low-rank variant and the N(0, 0.02) weights are those of Stickland and Murray 2019, whom both follow;
Houlsby et al. 2019; LHUC, learning hidden unit contributions: Swietojanski and Renals 2014.

Symbols: B batch, T tokens, d hidden size, s adapter size, h heads, a = h floor(s / h), L layers of the encoder.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtbert.bert import BertConfig, Linear, Mask, SelfAttention, init_empty_weights


@dataclass(frozen=True)
class AdapterSizes:
    """s, and the heads of a PAL."""

    size: int = 204
    heads: int = 12


class Adapter(nn.Module):
    """One task's adapter in a whole encoder; its layers call the hooks on the task's rows, at every depth from 0.

    A subclass has a method for each place where it works; at the others the hook is None, and the layer as it is. Its
    `__init__` must not read values of tensors, as it may be called on the device meta, which has none.
    """

    # The attention block's output after W^O, before dropout and residual: depth, (B, T, d) -> (B, T, d).
    after_attention: Callable[[int, Tensor], Tensor] | None = None
    # TS(h) of the layer's input: depth, (B, T, d), mask (B, 1, 1, T), True = attend -> (B, T, d). It joins the residual
    # of the second layer norm, LN(h_att + FFN(h_att) + TS(h)) (003, equation 2): a parallel adapter.
    parallel: Callable[[int, Tensor, Mask], Tensor] | None = None
    # The feed-forward block's output, before dropout and residual: depth, (B, T, d) -> (B, T, d).
    after_feed_forward: Callable[[int, Tensor], Tensor] | None = None
    # TS(h_att) of the feed-forward block's input, which joins the same residual; shapes as in `parallel`.
    parallel_feed_forward: Callable[[int, Tensor, Mask], Tensor] | None = None
    # The layer's output: depth, (B, T, d) -> (B, T, d).
    after_layer: Callable[[int, Tensor], Tensor] | None = None

    def __init__(self, encoder_config: BertConfig, sizes: AdapterSizes) -> None:
        super().__init__()


# The places where an adapter can work, each the name of a method.
PLACES = tuple(Adapter.__annotations__)


class PAL(Adapter):
    """Projected attention layer: TS(h) = GELU(V_D g(V_E h)) (001, equation 6; 003, equation 1).

    The equations of 001 and 003 have no GELU, which only the text of 001, section 4.2, names. g is multi-head attention
    in s dimensions without an output matrix. V_E and V_D serve all layers, Q, K and V one. As in the code of Stickland
    and Murray every head has floor(s / h) dimensions: Q, K and V make a numbers of s, a = h floor(s / h). Where h does
    not divide s their code fails, as its V_D takes s numbers and g gives a; our V_D takes a. Paper 001's s = 326 with
    12 heads has a = 324. Raises ValueError for more heads than dimensions.
    """

    def __init__(self, encoder_config: BertConfig, sizes: AdapterSizes) -> None:
        super().__init__(encoder_config, sizes)
        d = encoder_config.hidden_size
        L = encoder_config.num_hidden_layers
        s = sizes.size
        if not 1 <= sizes.heads <= s:
            raise ValueError(f"a PAL of size {s} has 1 to {s} heads, not {sizes.heads}")
        a = s - s % sizes.heads
        small = replace(encoder_config, hidden_size=a, num_attention_heads=sizes.heads)
        self.encode = Linear(d, s)  # V_E
        self.decode = Linear(a, d)  # V_D
        self.attention = nn.ModuleList(SelfAttention(small, s) for _ in range(L))  # g
        _initialize(self)

    def parallel(self, depth: int, hidden: Tensor, mask: Mask) -> Tensor:
        """GELU(V_D g(V_E h)): (B, T, d) -> (B, T, d)."""
        encoded = self.encode(hidden)  # (B, T, s)
        attended = self.attention[depth](encoded, mask)  # (B, T, a)
        return F.gelu(self.decode(attended))  # (B, T, d)


class Bottleneck(nn.Module):
    """V_D GELU(V_E x): (B, T, d) -> (B, T, s) -> (B, T, d)."""

    def __init__(self, d: int, s: int) -> None:
        super().__init__()
        self.encode = Linear(d, s)  # V_E
        self.decode = Linear(s, d)  # V_D

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, d) -> (B, T, d)."""
        return self.decode(F.gelu(self.encode(x)))


def _bottlenecks(encoder_config: BertConfig, s: int) -> nn.ModuleList:
    """A bottleneck for every layer of the encoder."""
    d = encoder_config.hidden_size
    L = encoder_config.num_hidden_layers
    return nn.ModuleList(Bottleneck(d, s) for _ in range(L))


class LowRank(Adapter):
    """TS(h) = V_D GELU(V_E h) parallel to the layer, like a PAL; every layer has its own V_E and V_D."""

    def __init__(self, encoder_config: BertConfig, sizes: AdapterSizes) -> None:
        super().__init__(encoder_config, sizes)
        self.blocks = _bottlenecks(encoder_config, sizes.size)
        _initialize(self)

    def parallel(self, depth: int, hidden: Tensor, mask: Mask) -> Tensor:
        """V_D GELU(V_E h): (B, T, d) -> (B, T, d)."""
        return self.blocks[depth](hidden)


class TwoBottlenecks(Adapter):
    """x + V_D GELU(V_E x) after the attention block of a layer, and a second bottleneck, which a subclass places."""

    def __init__(self, encoder_config: BertConfig, sizes: AdapterSizes) -> None:
        super().__init__(encoder_config, sizes)
        self.attention_blocks = _bottlenecks(encoder_config, sizes.size)
        self.feed_forward_blocks = _bottlenecks(encoder_config, sizes.size)
        _initialize(self)

    def after_attention(self, depth: int, x: Tensor) -> Tensor:
        """x + V_D GELU(V_E x): (B, T, d) -> (B, T, d)."""
        return x + self.attention_blocks[depth](x)


class Houlsby(TwoBottlenecks):
    """The second one is after the feed-forward block: x + V_D GELU(V_E x).

    Houlsby et al. 2019, figure 2 and their initialization, but for the block's dropout: it comes before the adapter in
    their code and after it here.
    """

    def __init__(self, encoder_config: BertConfig, sizes: AdapterSizes) -> None:
        super().__init__(encoder_config, sizes)
        # Smaller, and cut at two standard deviations: the pretrained layers start almost undisturbed.
        for name, parameter in self.named_parameters():
            if name.endswith("weight"):
                nn.init.trunc_normal_(parameter, std=0.01, a=-0.02, b=0.02)

    def after_feed_forward(self, depth: int, x: Tensor) -> Tensor:
        """x + V_D GELU(V_E x): (B, T, d) -> (B, T, d)."""
        return x + self.feed_forward_blocks[depth](x)


class HoulsbyPals(TwoBottlenecks):
    """Houlsby in the code of Stickland and Murray 2019: the second one reads the output of the attention block.

    LN(h_att + FFN(h_att) + V_D GELU(V_E h_att)); weights are drawn from N(0, 0.02).
    """

    def parallel_feed_forward(self, depth: int, attended: Tensor, mask: Mask) -> Tensor:
        """V_D GELU(V_E h_att): (B, T, d) -> (B, T, d)."""
        return self.feed_forward_blocks[depth](attended)


class LHUC(Adapter):
    """h * 2 sigmoid(a): one amplitude for every hidden unit of a layer's output, 1 at the start."""

    def __init__(self, encoder_config: BertConfig, sizes: AdapterSizes) -> None:
        super().__init__(encoder_config, sizes)
        d = encoder_config.hidden_size
        L = encoder_config.num_hidden_layers
        self.a = nn.ParameterList(torch.zeros(d) for _ in range(L))

    def after_layer(self, depth: int, x: Tensor) -> Tensor:
        """h * 2 sigmoid(a): (B, T, d) -> (B, T, d)."""
        amplitude = 2 * torch.sigmoid(self.a[depth])  # (d,)
        return x * amplitude


ADAPTERS: dict[str, type[Adapter]] = {
    "pal": PAL,
    "low_rank": LowRank,
    "houlsby": Houlsby,
    "houlsby_pals": HoulsbyPals,
    "lhuc": LHUC,
}


def adapter_parameters(name: str, encoder_config: BertConfig, sizes: AdapterSizes, with_biases: bool = True) -> int:
    """Number of parameters of one task's adapter.

    A PAL without biases has 2sd + L 3s^2, where the heads divide s (001, section 4.2).
    """
    with init_empty_weights():
        adapter = ADAPTERS[name](encoder_config, sizes)
    total = 0
    for path, parameter in adapter.named_parameters():
        if with_biases or not path.endswith("bias"):
            total += parameter.numel()
    return total


def _initialize(adapter: Adapter) -> None:
    """N(0, 0.02) weights and zero biases."""
    for module in adapter.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
