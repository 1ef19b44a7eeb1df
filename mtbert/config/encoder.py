"""Fields of a run about its encoder: the checkpoint, the sharing plan, adapters."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from mtbert.config.tasks import TaskFields
from mtbert.config.values import Dropout, Factor, Size, one_of
from mtbert.sharing import ADAPTERS, PlanError, SharingPlan

Encoder = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f]*$")]
Plan = Annotated[str, Field(max_length=1000)]


class EncoderFields(TaskFields):
    """What turns tokens into an embedding."""

    encoder: Encoder = Field(
        default="minilm", description="'minilm', 'mpnet', a checkpoint folder, or a name on the hub"
    )
    weights: Literal["pretrained", "random"] = Field(
        default="pretrained", description="random: the control, same sizes"
    )
    layers: Size | None = Field(default=None, description="use the first n layers of the encoder; none: all")
    max_length: int = Field(default=512, ge=4, le=2**16, description="tokens of a sequence, [CLS] and [SEP] included")
    attention_dropout: Dropout | None = Field(
        default=None, description="of the attention weights; none: the checkpoint's; 0 saves much time on long texts"
    )
    pooling: Literal["pooler", "cls", "mean"] = Field(default="mean", description="the embedding of a sentence")

    frozen: bool = Field(default=False, description="train the heads only; another name of the plan 'frozen'")
    plan: Plan = Field(
        default="1-bert", description="what is frozen, shared, individual: a preset or segments such as S4 I2"
    )
    soft_sharing: Literal["none", "l2", "trace"] = Field(
        default="none", description="what pulls the tasks' individual copies together"
    )
    soft_strength: Factor = Field(default=0.01, gt=0, description="factor of that pull in the loss")

    adapter: Annotated[str, one_of(ADAPTERS, "none")] = Field(
        default="none", description="of each task's own; houlsby_pals: as the code of the PALs' authors has Houlsby's"
    )
    adapter_size: Size = Field(default=204, description="s, the width inside an adapter")
    adapter_heads: Size = Field(
        default=12, description="attention heads of a PAL, each of adapter_size / adapter_heads, rounded down"
    )

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.frozen and self.plan != "1-bert":
            yield f"frozen: is the plan 'frozen', and plan is {self.plan!r}; set one of the two"
        try:
            plan = self.parsed_plan
        except PlanError as error:
            yield f"plan: {error}"
        has_copies = len(self.tasks) > 1 and any(level.mode == "I" for level in plan.levels.values())
        if self.soft_sharing != "none" and not has_copies:
            yield f"soft_sharing: the plan {self.plan_text!r} has no individual copies of several training tasks"
        if self.adapter == "pal" and self.adapter_heads > self.adapter_size:
            yield f"adapter_heads: {self.adapter_heads} heads are more than adapter_size {self.adapter_size}"

    def _without_effect(self) -> set[str]:
        unused = super()._without_effect()
        if self.adapter == "none":
            unused |= {"adapter_size", "adapter_heads"}
        if self.soft_sharing == "none":
            unused |= {"soft_strength"}
        return unused

    @property
    def plan_text(self) -> str:
        """The sharing plan, `frozen` taken into account."""
        return "frozen" if self.frozen else self.plan

    @property
    def parsed_plan(self) -> SharingPlan:
        """The sharing plan of the scored tasks, for as many layers as it names; PlanError if it cannot be read."""
        return SharingPlan.parse(self.plan_text, self.scored)

    @property
    def encoder_is_fixed(self) -> bool:
        """Whether the plan freezes every level that an embedding comes from."""
        levels = dict(self.parsed_plan.levels)
        if self.pooling != "pooler":
            levels.pop("pooler", None)
        return all(level.mode == "F" for level in levels.values())
