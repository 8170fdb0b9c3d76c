"""Flow-GRPO (Liu et al., arXiv 2505.05470): GRPO on the noisy steps of a stochastic sampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from vgrpo_core import Objective

if TYPE_CHECKING:
    from vgrpo_core import Policy
    from vgrpo_core.rollout import Rollout

    from .trajectory import TrajectoryUpdate

LEARN = "noisy steps that it learns from per sample; of more, a random choice each iteration"


class FlowGRPO(Objective):
    """Raise the probability of the noisy steps on the way to samples that beat their group; meant for `flow_sde`."""

    name = "flow_grpo"
    companion: ClassVar[str] = "flow_sde"
    """The sampler that `vgrpo compare` gives it where a recipe's own draws no noise."""

    learn: int = Field(default=9, ge=1, description=LEARN)
    clip: float | None = Field(default=1e-4, gt=0, lt=1, description="bound of each step's ratio; for more than one gradient step")
    advantage_clip: float = Field(default=5.0, gt=0, description="bound of the advantages")
    kl: float = Field(default=0.0, ge=0, description="weight of the KL term to the weights at the start")
    split: bool = Field(default=False, description="give each step its own part of the groups, not all of them")

    @property
    def noisy_steps(self) -> int:
        """Count the noisy steps that it learns from."""
        return self.learn

    def copies(self, iteration: int) -> Mapping[str, float]:
        """Keep the weights at the start where the KL term needs them."""
        return {"reference": 1.0} if self.kl else {}

    @property
    def evaluations(self) -> float:
        """Count `learn` in each gradient step that uses a sample, and as many of the reference where there is a KL term."""
        return self.learn * (1 if self.split else self.steps) * (2 if self.kl else 1)

    @property
    def rows_per_sample(self) -> int:
        """Count one row a noisy step."""
        return self.learn

    def start(self, policy: Policy, rollout: Rollout, micro: int) -> TrajectoryUpdate:
        """Prepare the gradient steps of one rollout; nothing is evaluated before the first.

        PluginError where the rollout kept fewer noisy steps than `learn`.
        """
        from .trajectory import TrajectoryUpdate

        return TrajectoryUpdate(self, policy, rollout)
