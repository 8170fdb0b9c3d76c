"""The tables of a recipe that are the core's own, and their keys."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from torch import Tensor


def _has_baseline(group: int) -> int:
    if group < 2:
        raise ValueError("a group needs at least 2 samples: each is compared with the mean of its group, and one alone has none")
    return group


Share = Annotated[float, Field(ge=0, lt=1)]


class Table(BaseModel):
    """Hold the keys of one table; unknown keys and numbers that are not finite are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Run(Table):
    """The run as a whole."""

    name: str = Field(pattern=r"^[^/\\.][^/\\]*$", description="name of the run's folder")
    iterations: int = Field(ge=1, description="how often to draw images and learn from them")
    seed: int = Field(default=0, ge=0, lt=2**63, description="what all random numbers of training follow from")
    device: str = Field(default="auto", pattern=r"^[a-z]+(:\d+)?$", description="`auto`, `cpu`, `cuda`, `cuda:1`, `mps`, ...")
    init: Annotated[Path, AfterValidator(Path.absolute)] | None = Field(default=None, description="run or checkpoint to begin with")
    shard: bool = Field(default=False, description="split weights, gradients and moments over the ranks, for full fine-tuning")


class Batch(Table):
    """What one iteration draws, over all ranks together."""

    prompts: int = Field(ge=1, description="prompts per iteration")
    group: Annotated[int, AfterValidator(_has_baseline)] = Field(description="images per prompt, 2 or more")
    micro: int = Field(default=8, ge=1, description="rows sent through the network at once: memory and speed, no result")


class Optimizer(Table):
    """AdamW."""

    lr: float = Field(gt=0, description="learning rate")
    betas: tuple[Share, Share] = Field(default=(0.9, 0.95), description="decay of the two moments")
    weight_decay: float = Field(default=0.0, ge=0, description="decoupled weight decay")
    warmup: int = Field(default=0, ge=0, description="iterations in which the rate rises to `lr`")
    decay: Literal["none", "cosine", "linear"] = Field(default="none", description="how the rate falls to its tenth at the end")
    max_grad_norm: float = Field(default=1.0, gt=0, description="bound of the gradient's norm")
    bits: Literal[8, 32] = Field(default=32, description="precision of the moments; 8 needs bitsandbytes")
    ema: float | None = Field(default=None, gt=0, lt=1, description="decay of the weights' average that is evaluated and exported")


class Gate(Table):
    """Let a reward count only where the native score of another one lies in a range."""

    reward: str = Field(description="label of the other reward")
    above: float = Field(default=-math.inf, description="it has to be greater than this")
    below: float = Field(default=math.inf, description="it has to be less than this")

    model_config = ConfigDict(allow_inf_nan=True)

    def holds(self, scores: Tensor) -> Tensor:
        """Tell where it is open; never where the score is missing."""
        return (scores > self.above) & (scores < self.below)


class Combine(Table):
    """How several rewards become one advantage."""

    use: Literal["normalize_then_sum", "sum_then_normalize"] = Field(
        default="normalize_then_sum", description="normalise each reward in its group and add, or add and then normalise"
    )
    scale: Literal["group", "batch"] = Field(default="group", description="whose deviation divides; the mean is the group's")


class Checkpoint(Table):
    """Where a stopped run goes on from."""

    every: int = Field(default=10, ge=0, description="iterations between checkpoints; 0 writes one at the end only")
    keep: int = Field(default=2, ge=1, description="how many to keep")
    best: str | None = Field(default=None, description="label of a reward: keep the checkpoint it judged best, in `best/`, besides")


class EvalKeys(Table):
    """Judging held-out prompts, always with the same noise."""

    every: int = Field(default=0, ge=0, description="iterations between evaluations; 0 evaluates at start and end only")
    seed: int = Field(default=0, ge=0, lt=2**63, description="what the noise of evaluation follows from")
    samples: int = Field(default=1, ge=1, description="images per prompt")
    watch: bool = Field(default=True, description="watch brightness, dark_fraction, edge_density and color_entropy besides")
