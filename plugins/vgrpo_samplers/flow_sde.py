"""Flow-GRPO's stochastic steps (Liu et al., arXiv 2505.05470)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from .stochastic import FlowPath, rising

if TYPE_CHECKING:
    from torch import Tensor


class FlowSDE(FlowPath):
    """Draw noise in every step but the last, much at first and less towards the data: Flow-GRPO's sampler; for flows."""

    name = "flow_sde"

    steps: int = Field(default=10, ge=1, description="steps from noise to data")
    last: bool = Field(default=False, description="draw noise in the last step too; it stays in the latents")

    def window(self, iteration: int) -> range:
        """Return the steps that draw noise: the same in every iteration."""
        return range(self.steps) if self.last else super().window(iteration)

    def deviation(self, times: Tensor) -> Tensor:
        """Return a sqrt(t / (1 - t)) for each step."""
        return rising(times, self.noise)
