"""MixGRPO's sliding window of stochastic steps (Li et al., arXiv 2507.21802)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from .dpmsolver import DPMSolver
from .euler import Euler
from .stochastic import FlowPath, rising

if TYPE_CHECKING:
    from torch import Tensor

    from vgrpo_core import Schedule
    from vgrpo_core.plugin import Predict


class WindowSDE(FlowPath):
    """Draw noise only inside a window of steps that slides from noise to data as training goes on: MixGRPO's sampler; for flows."""

    name = "window_sde"

    steps: int = Field(default=25, ge=1, description="steps from noise to data")
    width: int = Field(default=4, ge=1, description="steps in the window")
    stay: int = Field(default=25, ge=1, description="iterations that the window stays at one place")
    stride: int = Field(default=1, ge=1, description="steps that it then moves by")
    after: Literal["euler", "dpmsolver++"] = Field(default="euler", description="how to go on after the window")
    compress: float = Field(default=1.0, gt=0, le=1, description="share of the steps after the window that are taken")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width >= self.steps:
            raise ValueError(f"width must be less than steps, as the last step draws no noise; found {self.width} of {self.steps}")
        return self

    @property
    def starts(self) -> range:
        """Return the first steps of the windows of one cycle: all that leave out the last step."""
        return range(0, self.steps - self.width, self.stride)

    @property
    def rollout_evaluations(self) -> float:
        """Count the network evaluations per sample in training: the mean over a cycle of windows."""
        ends = [start + self.width for start in self.starts]
        return sum(end + self.left(self.steps - end) for end in ends) / len(ends)

    def window(self, iteration: int) -> range:
        """Return the steps that draw noise in an iteration, which count from 1; after the last window comes the first."""
        start = self.starts[(iteration - 1) // self.stay % len(self.starts)]
        return range(start, start + self.width)

    def deviation(self, times: Tensor) -> Tensor:
        """Return a sqrt(t / (1 - t)) for each step."""
        return rising(times, self.noise)

    def left(self, steps: int) -> int:
        """Count the steps that are taken for `steps` of the schedule after the window: at least one."""
        return max(1, round(steps * self.compress))

    def finish(self, predict: Predict, z: Tensor, rest: Schedule) -> Tensor:
        """Go on with fewer steps, evenly spaced in positions of the schedule."""
        import torch

        from vgrpo_core.pairs import warp

        count = len(rest.times) - 1
        if (left := self.left(count)) < count:
            positions = torch.linspace(1, 0, left + 1, dtype=torch.float64)
            rest = replace(rest, times=warp(positions, rest.times.cpu()).to(z.device))
        solver = DPMSolver if self.after == "dpmsolver++" else Euler
        return solver(steps=left).sample(predict, z, rest)
