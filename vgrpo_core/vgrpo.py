"""V-GRPO (arXiv 2604.23380): GRPO whose likelihood is the denoising loss of the finished sample.

R rows (samples), N pairs of time and noise, *D one latent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from .hookspecs import hookimpl
from .plugin import Objective

if TYPE_CHECKING:
    from .policy import Policy
    from .rollout import Rollout
    from .surrogate import SurrogateUpdate


class VGRPO(Objective):
    """Raise the likelihood of the samples that beat their group, by a denoising loss on pairs that the group shares."""

    name = "vgrpo"

    pairs: int = Field(default=4, ge=1, description="pairs of time and noise per sample; 2 are too few, 8 add little to 4")
    clip: float | None = Field(default=None, gt=0, lt=1, description="bound of the ratio, such as 1e-2; for more than one step")
    kl: float = Field(default=0.0, ge=0, description="weight of the KL term to the policy that drew the samples")
    soft_clip: float | None = Field(default=None, gt=0, description="bound of the advantages, eta tanh(A / eta); 3 to 5")
    loss: Literal["x", "v", "epsilon"] = Field(default="x", description="whose error counts: data, velocity, noise")
    top: float = Field(default=1.0, gt=0, le=1, description="share of each group to learn from: the largest advantages in size")
    split: bool = Field(default=False, description="give each step its own part of the groups, not all of them")
    shared: bool = Field(default=True, description="share pairs inside a group; false draws them for each sample")
    stratified: bool = Field(default=True, description="draw one time in each of equal segments; false draws uniformly")
    adaptive: bool = Field(default=True, description="divide the squared error by its detached mean absolute error")
    span: tuple[float, float] = Field(default=(0.02, 1.0), description="part of the schedule to draw from; 0 is data")

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if not 0 <= self.span[0] < self.span[1] <= 1:
            raise ValueError(f"span must rise within 0 and 1, such as [0.02, 1.0]; found {list(self.span)}")
        return self

    @property
    def evaluations(self) -> float:
        """Count `pairs` for each sample that a step uses, and for its old surrogate where the weights have moved before."""
        return self.top * self.pairs * (2 - 1 / self.steps if self.split else self.steps)

    @property
    def rows_per_sample(self) -> int:
        """Count one row a pair."""
        return self.pairs

    def start(self, policy: Policy, rollout: Rollout, micro: int) -> SurrogateUpdate:
        """Prepare the gradient steps of one rollout, at most `micro` samples at a time."""
        from .surrogate import SurrogateUpdate

        return SurrogateUpdate(self, policy, rollout, micro)


@hookimpl
def vgrpo_objectives() -> list[type[Objective]]:
    """Offer V-GRPO."""
    return [VGRPO]
