"""Fields of a run about its heads: what they see of a sentence or a pair, how they are built, and what feeds them."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from mtbert.config.encoder import EncoderFields
from mtbert.config.values import Dropout, Names, Size
from mtbert.data import TASKS
from mtbert.pairs import PAIR_FEATURES


class HeadFields(EncoderFields):
    """What turns embeddings into an output."""

    pairs: str = Field(
        default="joint",
        description="joint: one sequence with [SEP] (cross-encoder); or, of embeddings of the two sentences "
        "(bi-encoder), some joined by +: sum, concat, product (Hadamard), difference (absolute), cosine",
    )
    pos_features: bool = Field(
        default=False, description="append the shares of the part-of-speech tags to the features"
    )
    similarity: Literal["mse", "sigmoid_cosine"] = Field(
        default="mse", description="STS: squared error of a head, or of 5 sigmoid(cosine of the two embeddings)"
    )
    head_layers: int = Field(default=1, ge=1, le=100, description="linear layers of a head, ReLU between them")
    head_width: Size = Field(default=256, description="of a head's hidden layers")
    head_norm: bool = Field(default=False, description="layer norm of the embeddings in front of the heads")
    head_dropout: Dropout = Field(default=0.1, description="dropout of the heads")
    dropout_place: Literal["before", "inside", "after"] = Field(
        default="before", description="before the head, before each of its linear layers, or after the last one"
    )
    feeds: Names = Field(
        default=(), description="progressive heads: 'sst>quora' shows the sst head's output to quora's head"
    )
    upstream: Literal["frozen", "slow", "free"] = Field(
        default="frozen",
        description="weights of the head that feeds while the fed task trains; slow: a tenth of the rate",
    )
    combine: Literal["concat", "attention"] = Field(
        default="concat", description="how a head takes in what is fed to it"
    )

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        parts = self.pairs.split("+")
        is_known = set(parts) <= PAIR_FEATURES.keys() and len(set(parts)) == len(parts)
        if self.two_encodings and not is_known:
            yield f"pairs: {self.pairs!r} is neither 'joint' nor some of {', '.join(PAIR_FEATURES)} joined by +"
        if self.similarity == "sigmoid_cosine":
            yield from self._cosine_problems()
        yield from self._feed_problems()

    def _cosine_problems(self) -> Iterator[str]:
        if not self.two_encodings:
            yield "similarity: sigmoid_cosine compares two embeddings, but pairs is 'joint'"
        is_fixed = self.encoder_is_fixed and self.adapter == "none" and not self.head_norm
        if is_fixed and any(TASKS[task].kind == "similarity" for task in self.tasks):
            yield "similarity: sigmoid_cosine has no parameters of its own, and on a frozen encoder nothing to train"

    def _feed_problems(self) -> Iterator[str]:
        fed: dict[str, set[str]] = {}  # task -> the tasks whose heads feed its own
        for feed in self.feeds:
            upstream, arrow, task = feed.partition(">")
            if not arrow or {upstream, task} - set(self.scored) or upstream == task:
                yield f"feeds: {feed!r} is not 'upstream>task' with two different tasks of {list(self.scored)}"
            if upstream in fed.setdefault(task, set()):
                yield f"feeds: {feed!r} is given twice"
            if self.two_encodings and TASKS[upstream].is_pair and not TASKS[task].is_pair:
                yield f"feeds: {feed!r}: the head of a pair task needs two sentences, and {task} has one"
            for name in (upstream, task):
                if self.similarity == "sigmoid_cosine" and TASKS[name].kind == "similarity":
                    yield f"feeds: {feed!r}: with similarity sigmoid_cosine {name} has no head"
            fed[task].add(upstream)
        while ready := [task for task in fed if not fed[task] & set(fed)]:
            for task in ready:
                del fed[task]
        if fed:
            yield f"feeds: {', '.join(sorted(fed))} feed one another in a circle"

    def _without_effect(self) -> set[str]:
        unused = super()._without_effect()
        if self.head_layers == 1:
            unused |= {"head_width"}
        if not self.feeds:
            unused |= {"upstream", "combine"}
        return unused

    @property
    def has_deep_heads(self) -> bool:
        """Whether a head has several layers, its own or attention in front of them, and starts as torch's do."""
        return self.head_layers > 1 or (bool(self.feeds) and self.combine == "attention")

    @property
    def two_encodings(self) -> bool:
        """Whether the sentences of a pair are encoded apart."""
        return self.pairs != "joint"

    def encodings(self, task: str) -> int:
        """k, the embeddings of an example of a task: 2 for a pair whose sentences are encoded apart, else 1."""
        return 2 if self.two_encodings and TASKS[task].is_pair else 1
