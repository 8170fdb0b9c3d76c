"""AWM, advantage-weighted matching (arXiv 2509.25050): a policy gradient whose log-probability is the flow-matching loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from vgrpo_core import Objective

if TYPE_CHECKING:
    from vgrpo_core import Policy
    from vgrpo_core.rollout import Rollout

    from .awm_update import AWMUpdate


class AWM(Objective):
    """Weigh the flow-matching loss of each sample with its advantage, near the weights at the start and a moving average."""

    name = "awm"

    pairs: int = Field(default=6, ge=1, description="pairs of time and noise per sample, times in equal segments")
    weight: Literal["1", "t", "t2", "huber"] = Field(default="huber", description="weight of a time; huber: t, and a Huber loss")
    power: float = Field(default=0.25, gt=0, le=1, description="power of the squared error in the Huber loss; 1 is weight t")
    ratio: Literal["pair", "mean"] = Field(default="pair", description="one ratio a pair, or one a sample of the mean over pairs")
    clip: float | None = Field(default=1.0, gt=0, description="bound of the ratio; for more than one step")
    advantage_clip: float = Field(default=5.0, gt=0, description="bound of the advantages, which are divided by it")
    kl: float = Field(default=1e-3, ge=0, description="weight of the KL term to the weights at the start, on velocities")
    kl_ema: float = Field(default=1.0, ge=0, description="weight of the KL term to a moving average of the weights, on velocities")
    ema_rate: float = Field(default=0.001, ge=0, description="rise of the average's decay per iteration")
    ema_max: float = Field(default=0.3, ge=0, le=1, description="bound of the average's decay")
    span: tuple[float, float] = Field(default=(0.02, 1.0), description="part of the schedule to draw from; 0 is data")

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if not 0 <= self.span[0] < self.span[1] <= 1:
            raise ValueError(f"span must rise within 0 and 1, such as [0.02, 1.0]; found {list(self.span)}")
        return self

    def copies(self, iteration: int) -> Mapping[str, float]:
        """Keep what the KL terms hold the weights to."""
        decays = {"reference": 1.0, "ema": min(self.ema_rate * iteration, self.ema_max)}
        return {copy: decays[copy] for copy in self.kl_terms}

    @property
    def kl_terms(self) -> dict[str, float]:
        """Return the weight of the KL term to each copy that has one."""
        return {copy: weight for copy, weight in {"reference": self.kl, "ema": self.kl_ema}.items() if weight}

    @property
    def evaluations(self) -> float:
        """Count `pairs` in each step, and once for each copy that a KL term needs, which a rollout's steps share."""
        return self.pairs * (self.steps + len(self.kl_terms))

    @property
    def rows_per_sample(self) -> int:
        """Count one row a pair."""
        return self.pairs

    def start(self, policy: Policy, rollout: Rollout, micro: int) -> AWMUpdate:
        """Prepare the gradient steps of one rollout; nothing is evaluated before the first."""
        from .awm_update import AWMUpdate

        return AWMUpdate(self, policy, rollout)
