"""What each operation of an encoder layer keeps, makes, needs and computes in a training step, from shapes alone.

Source: the layers as bert.py, trunk.py, adapters.py and fast.py compute them (papers 000, section 2; 001, equations 1,
2 and 6; 003, equation 2). Autograd keeps of an operation what its derivative asks for: a matrix product keeps its input
where its weights are trained, and its weights where a gradient passes through it; layer norm and GELU keep their input,
softmax its output, dropout its mask. What is frozen, with nothing trained below it, keeps nothing.

Symbols: b sequences of T tokens of one task, n = b T; N the tokens of a group of tasks; d, d_i, h as in bert.py; s the
adapter size, a that of a PAL's attention output. Sizes are bytes.
"""

from dataclasses import dataclass, field

from mtbert.adapters import attention_size
from mtbert.bert import BertConfig
from mtbert.config import RunConfig

FLOAT, HALF, BYTE, INDEX = 4, 2, 1, 8  # bytes of a float32, a bfloat16, a bool, an int64

Shapes = dict[str, tuple[int, int]]  # task -> (sequences or examples, tokens)


@dataclass(frozen=True)
class Operation:
    """One operation of the forward pass, and its backward pass.

    kept: name -> bytes that stay from the one to the other. gradients: whose weights -> bytes of their gradient.
    forward, backward: bytes beside all that is kept, at the operation's largest moment in either pass.
    work, of both passes: products (floating-point operations of matrix products with weights), scores (numbers of the
    T x T matrices, for each time they are gone through).
    """

    level: str  # embeddings, layer 1, ..., pooling, head
    tasks: tuple[str, ...]
    name: str
    kept: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, int] = field(default_factory=dict)
    forward: int = 0
    backward: int = 0
    work: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Hidden:
    """Hidden states (N, d) between two layers: their storage, its bytes, whether a gradient flows back into them."""

    storage: str
    size: int
    flows: bool


@dataclass
class Pass:
    """A forward pass under construction: its operations, and the storages that several of them keep.

    training: False for an evaluation, which has no graph.
    """

    config: RunConfig
    encoder: BertConfig
    cuda: bool = False
    training: bool = True
    operations: list[Operation] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)

    @property
    def is_half(self) -> bool:
        """Whether matrix products read and write bfloat16, copies of float32 (autocast)."""
        return self.config.precision == "bf16"

    @property
    def width(self) -> int:
        """Bytes of a number that a matrix product reads and writes."""
        return HALF if self.is_half else FLOAT

    def once(self, storage: str, size: int) -> int:
        """The bytes of a storage at the first operation that keeps it; 0 at the others."""
        if storage in self.stored:
            return 0
        self.stored.add(storage)
        return size


class LayerPass:
    """One layer on the rows of a group of tasks; `run` appends its operations, in the order of BertLayer.forward.

    shapes: of sequences. copy: which of the layer's copies. A layer that is not trained is in evaluation mode.
    """

    def __init__(self, steps: Pass, depth: int, copy: int, shapes: Shapes, x: Hidden, trained: bool) -> None:
        config, encoder = steps.config, steps.encoder
        self.steps, self.shapes, self.x, self.trained = steps, shapes, x, trained and steps.training
        self.level, self.name = f"layer {depth + 1}", f"layer {depth + 1}.{copy}"
        self.d, self.d_i, self.h = encoder.hidden_size, encoder.intermediate_size, encoder.num_attention_heads
        adapted = not config.adapter_layers or depth + 1 in config.adapter_layers
        self.adapter, self.s = config.adapter if adapted else "none", config.adapter_size
        p = encoder.attention_probs_dropout_prob
        self.drops_attention = (p if config.attention_dropout is None else config.attention_dropout) > 0
        self.drops = encoder.hidden_dropout_prob > 0 and self.trained
        self.N = sum(b * T for b, T in shapes.values())
        self.width = steps.width
        self.wide = self.N * self.d * FLOAT  # (N, d)
        self.thin = self.N * self.d * self.width  # (N, d) as a matrix product reads and writes it
        self.flows = x.flows  # whether a gradient flows back into what the next operation reads
        self.alive = 0  # variables that are not kept and live until the layer ends
        self.around = 0  # gradients that wait while an operation's backward pass runs

    def run(self) -> Hidden:
        """The layer's operations; returns its output."""
        copied = self.steps.is_half or not self.trained  # products do not keep the float32 hidden states themselves
        beside = self.adapter in ("pal", "low_rank")
        self.alive = self.wide * copied  # the input
        self.around = self.wide + self.wide * (beside and self.x.flows)
        self._attention()
        if self.adapter in ("houlsby", "houlsby_pals"):
            self._houlsby("attention")
        self._dropout("attention")
        self.flows |= self.x.flows
        self._norm("attention")
        self.alive += self.wide * copied
        attended_flows = self.flows
        self.around += self.wide * (self.adapter == "houlsby_pals" and attended_flows)
        self._feed_forward()
        if self.adapter == "houlsby":
            self._houlsby("feed-forward")
        self._dropout("feed-forward")
        self.alive += self.thin
        self.around = self.wide
        if beside:
            self._beside()
        if self.adapter == "houlsby_pals":
            self._beside_feed_forward(attended_flows)
        self.around = 0
        self._norm("feed-forward")
        if self.adapter == "lhuc":
            self._lhuc()
        return Hidden(self.name, self.wide, self.flows)

    def _add(
        self,
        name: str,
        kept: dict[str, int],
        forward: int = 0,
        backward: int = 0,
        *,
        weights: int = 0,
        of: str = "",
        tasks: tuple[str, ...] = (),
        work: tuple[str, int] = ("products", 0),
    ) -> None:
        """An operation with so many trained weights, and the work of its forward pass.

        Without trained weights here or below there is no backward pass, and nothing is kept.
        """
        graph = self.flows or weights > 0
        kept = {key: size for key, size in kept.items() if size} if graph else {}
        gradients = {of or f"{self.name} {name}": weights * FLOAT} if weights else {}
        kind, amount = work
        passes = 1 + self.flows + (weights > 0) if kind == "products" else 1 + 2 * graph
        self.steps.operations.append(
            Operation(
                self.level,
                tasks or tuple(self.shapes),
                name,
                kept,
                gradients,
                self.alive + forward,
                graph * (self.around + backward),
                {kind: amount * passes} if amount else {},
            )
        )
        self.flows = graph

    def _linear(
        self,
        name: str,
        shape: tuple[int, int, int],
        kept: dict[str, int],
        forward: int = 0,
        *,
        trained: bool,
        bias: bool = True,
        of: str = "",
        tasks: tuple[str, ...] = (),
    ) -> None:
        """A matrix product of shape (n, inputs, outputs); `kept`, its input, is kept where it is trained."""
        n, inputs, outputs = shape
        half, weights = self.steps.is_half, inputs * outputs
        kept = dict(kept) if trained else {}
        if half and self.flows:  # autocast's copy of the weights
            kept["bfloat16 weights"] = self.steps.once(f"bfloat16 {of or self.name} {name}", weights * HALF)
        self._add(
            name,
            kept,
            forward + n * outputs * self.width,
            n * (outputs + inputs) * self.width + half * trained * weights * HALF,
            weights=trained * (weights + bias * outputs),
            of=of,
            tasks=tasks,
            work=("products", 2 * n * weights),
        )

    def _input(self, task: str | None = None) -> int:
        """Bytes of the layer's input as a product keeps it: itself, or under autocast a copy, of one task or all."""
        if not self.steps.is_half:
            return self.steps.once(self.x.storage, self.x.size)
        b, T = self.shapes.get(task, (1, self.N))
        return b * T * self.d * HALF

    def _attention(self) -> None:
        several, joined = len(self.shapes) > 1, 3 * self.d * self.d  # Q's, K's and V's weights side by side
        kept = {"layer input": self._input()} if self.trained else {}
        kept["joined weights"] = joined * self.width * self.flows
        backward = 4 * self.thin + self.trained * joined * (FLOAT + HALF * self.steps.is_half)
        weights, work = self.trained * (joined + 3 * self.d), ("products", 2 * self.N * joined)
        self._add("Q, K, V", kept, 3 * self.thin + joined * FLOAT, backward, weights=weights, work=work)
        before = self.alive
        self.alive += 3 * self.thin  # Q, K and V, until the context of all tasks is there
        is_view = False
        for task in self.shapes:
            is_view = self._heads(task, self.d, self.h, self.drops_attention and self.trained, 4 * self.thin)
        context = {} if is_view and not several and not self.steps.is_half else {"context": self.thin}
        self._linear("attention output", (self.N, self.d, self.d), context, self.wide, trained=self.trained)
        self.alive = before

    def _heads(self, task: str, d: int, h: int, drops: bool, backward: int) -> bool:
        """softmax(Q K') V of one task, as fast.attend computes it; returns whether its result is kept here.

        backward: bytes of the gradients of all tasks' Q, K and V and of the context.
        """
        b, T = self.shapes[task]
        vectors, matrix, tasks = b * T * d * FLOAT, b * h * T * T, (task,)
        work = ("scores", matrix)
        if not self.flows or self.steps.cuda or not (drops or self.steps.is_half):  # torch's fused kernel
            projected = self.thin if d == self.d else b * T * d * self.width
            storage = f"{self.name} Q, K, V {task if d != self.d else ''}"
            kept = {"Q, K, V": self.steps.once(storage, 3 * projected), "context": b * T * d * self.width}
            kept["log-sum-exp"] = b * h * T * FLOAT
            self._add("attention", kept, 0, backward + 2 * vectors, tasks=tasks, work=work)
            return True
        scores = matrix * FLOAT
        forward = 2 * vectors + scores
        kept = {"Q": vectors, "K": vectors}
        self._add("scores", kept, forward, backward + scores + 3 * vectors, tasks=tasks, work=work)
        forward, backward = forward - vectors, backward + vectors
        self._add("softmax", {"softmax": scores}, forward, backward + 2 * scores, tasks=tasks, work=work)
        if drops:
            mask = {"attention mask": matrix * BYTE}
            self._add("attention dropout", mask, forward + scores, backward + 2 * scores, tasks=tasks, work=work)
        kept = {"weights after dropout": scores * drops, "V": vectors}
        self._add("weighted values", kept, forward + vectors, backward + scores + vectors, tasks=tasks)
        return False

    def _dropout(self, block: str) -> None:
        if self.drops:
            kept = {"dropout mask": self.N * self.d * BYTE}
            self._add(f"{block} dropout", kept, 2 * self.thin, 2 * self.thin)

    def _norm(self, block: str) -> None:
        kept = {"norm input": self.wide, "mean and deviation": 2 * self.N * FLOAT}
        self._add(f"{block} norm", kept, self.wide, 2 * self.wide, weights=2 * self.d * self.trained)

    def _feed_forward(self) -> None:
        d, d_i, trained = self.d, self.d_i, self.trained
        hidden = self.N * d_i * self.width
        self._linear("feed-forward in", (self.N, d, d_i), {"attended": self.thin}, trained=trained)
        self._add("GELU", {"feed-forward hidden": hidden}, hidden, 2 * hidden)
        self._linear("feed-forward out", (self.N, d_i, d), {"GELU output": hidden}, trained=trained)

    def _beside(self) -> None:
        """PAL or low-rank adapter of each task, on the layer's input."""
        after_feed_forward = self.flows
        for task, (b, T) in self.shapes.items():
            self.flows = self.x.flows
            if self.adapter == "pal":
                self._pal(task, b * T)
            else:
                self._bottleneck(task, b * T, f"{self.level} {task}", {"layer input": self._input(task)})
        self.flows |= after_feed_forward

    def _beside_feed_forward(self, attended_flows: bool) -> None:
        """The bottleneck of each task on the feed-forward block's input."""
        after_feed_forward = self.flows
        for i, (task, (b, T)) in enumerate(self.shapes.items()):
            self.flows = attended_flows
            own = b * T * self.d * HALF if self.steps.is_half else self.wide * (i == 0 and not self.trained)
            self._bottleneck(task, b * T, f"{self.level} feed-forward {task}", {"attended": own})
        self.flows |= after_feed_forward

    def _pal(self, task: str, n: int) -> None:
        d, s, a, bias = self.d, self.s, attention_size(self.steps.config), self.steps.config.adapter_bias
        about, inside = dict(trained=self.steps.training, bias=bias, tasks=(task,)), n * s * self.width
        self._linear("V_E", (n, d, s), {"layer input": self._input(task)}, of=f"V_E {task}", **about)
        own = f"{self.level} PAL {task}"
        joined = {} if self.steps.is_half else {"joined weights": 3 * s * a * FLOAT}
        self._linear("PAL Q, K, V", (n, s, 3 * a), {"V_E output": inside} | joined, of=own, **about)
        inside = n * a * self.width
        self._heads(task, a, self.steps.config.adapter_heads, self.drops_attention, 4 * inside)
        self._linear("V_D", (n, a, d), {"PAL context": inside}, of=f"V_D {task}", **about)
        output = n * d * self.width
        self._add("PAL GELU", {"V_D output": output}, n * d * FLOAT, 2 * output, tasks=(task,))

    def _houlsby(self, block: str) -> None:
        """x + V_D GELU(V_E x) behind a block, of each task."""
        for i, (task, (b, T)) in enumerate(self.shapes.items()):
            whole = {f"{block} output": self.thin * (i == 0)}  # every task's part is a view of it
            self._bottleneck(task, b * T, f"{self.level} {block} {task}", whole)

    def _lhuc(self) -> None:
        """h * 2 sigmoid(a) of each task."""
        for i, task in enumerate(self.shapes):
            kept = {"layer output": self.wide * (i == 0), "amplitudes": 2 * self.d * FLOAT}
            of, weights = f"{self.level} LHUC {task}", self.d * self.steps.training
            self._add("LHUC", kept, self.wide, 2 * self.wide, weights=weights, of=of, tasks=(task,))

    def _bottleneck(self, task: str, n: int, of: str, kept: dict[str, int]) -> None:
        d, s, inside = self.d, self.s, n * self.s * self.width
        about = dict(trained=self.steps.training, bias=self.steps.config.adapter_bias, tasks=(task,))
        self._linear("V_E", (n, d, s), kept, of=f"{of} V_E", **about)
        self._add("adapter GELU", {"V_E output": inside}, inside, 2 * inside, tasks=(task,))
        self._linear("V_D", (n, s, d), {"adapter hidden": inside}, n * d * self.width, of=f"{of} V_D", **about)
