"""DanceGRPO's stochastic steps (Xue et al., arXiv 2505.07818)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from .stochastic import FlowPath

if TYPE_CHECKING:
    from torch import Tensor


class DanceSDE(FlowPath):
    """Draw noise of one deviation in every step but the last: DanceGRPO's sampler; for flows."""

    name = "dance_sde"

    noise: float = Field(default=0.3, ge=0, description="deviation of the noise per root of time, eta; 0 draws none")
    same_start: bool = Field(default=True, description="start all samples of a prompt from the same noise")

    def deviation(self, times: Tensor) -> Tensor:
        """Return eta for each step."""
        return times.new_full((len(times) - 1,), self.noise)
