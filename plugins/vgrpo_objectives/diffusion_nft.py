"""DiffusionNFT (arXiv 2509.16117): pull the network towards good samples and push it from bad ones, on the forward process.

The samples are those of the policy "old", a moving average of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from pydantic import Field

from vgrpo_core import Objective

if TYPE_CHECKING:
    from vgrpo_core import Policy
    from vgrpo_core.rollout import Rollout

    from .nft_update import DiffusionNFTUpdate


class Ramp(NamedTuple):
    """A decay that is 0 for `wait` iterations and then rises by `rate` in each, up to `limit`."""

    wait: int
    rate: float
    limit: float


RAMPS = {"slow": Ramp(0, 0.001, 0.5), "delayed": Ramp(75, 0.0075, 0.999)}  # the public code's types 1 and 2


class DiffusionNFT(Objective):
    """Match an implicit positive policy to good samples and an implicit negative one to bad samples; no likelihood."""

    name = "diffusion_nft"
    behaviour: ClassVar[str | None] = "old"

    pairs: int = Field(default=10, ge=1, description="pairs of time and noise per sample")
    grid: bool = Field(default=True, description="take the times of a rollout of `pairs` steps; false draws them in equal segments")
    beta: float = Field(default=1.0, gt=0, description="how far the two policies are from the one that drew; 0.1 to 1")
    kl: float = Field(default=1e-4, ge=0, description="weight of the KL term to the weights at the start, on velocities")
    advantage_clip: float = Field(default=5.0, gt=0, description="advantage that counts as wholly good, and the loss's factor")
    decay: Literal["slow", "delayed"] = Field(default="slow", description="how the drawing policy's moving average slows down")
    decay_wait: int | None = Field(default=None, ge=0, description="iterations without decay; none for that of `decay`")
    decay_rate: float | None = Field(default=None, ge=0, description="rise of the decay per iteration; none for that of `decay`")
    decay_max: float | None = Field(default=None, ge=0, le=1, description="bound of the decay; none for that of `decay`")

    def copies(self, iteration: int) -> Mapping[str, float]:
        """Keep the policy that draws and, for the KL term, the weights at the start."""
        return {"old": self.decay_after(iteration), **({"reference": 1.0} if self.kl else {})}

    def decay_after(self, iteration: int) -> float:
        """Return the decay of the drawing policy after an iteration: min(rate max(0, iteration - wait), limit)."""
        wait, rate, limit = (
            preset if own is None else own
            for own, preset in zip((self.decay_wait, self.decay_rate, self.decay_max), RAMPS[self.decay], strict=True)
        )
        return min(rate * max(0, iteration - wait), limit)

    @property
    def evaluations(self) -> float:
        """Count `pairs` in each step, and once each for the drawing policy and the reference, which a rollout's steps share."""
        return self.pairs * (self.steps + 1 + bool(self.kl))

    @property
    def rows_per_sample(self) -> int:
        """Count one row a pair."""
        return self.pairs

    def start(self, policy: Policy, rollout: Rollout, micro: int) -> DiffusionNFTUpdate:
        """Prepare the gradient steps of one rollout; nothing is evaluated before the first."""
        from .nft_update import DiffusionNFTUpdate

        return DiffusionNFTUpdate(self, policy, rollout)
