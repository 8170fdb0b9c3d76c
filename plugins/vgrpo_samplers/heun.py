"""Heun's method: two evaluations a step, second order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgrpo_core import Sampler

from .straight import slope, straight_steps, widened

if TYPE_CHECKING:
    from torch import Tensor

    from vgrpo_core import Schedule
    from vgrpo_core.plugin import Predict


class Heun(Sampler):
    """Two evaluations a step and one for the last, second order: the mean of the slopes at both ends of a step."""

    name = "heun"

    @property
    def evaluations(self) -> int:
        """Count two network evaluations a step, and one for the last."""
        return 2 * self.steps - 1

    def sample(self, predict: Predict, noise: Tensor, schedule: Schedule) -> Tensor:
        """Follow the mean of the slopes at both ends of each step; the last step is Euler's.

        At sigma 0 there is no noise left to predict, and one first-order step does not lower the order of all.
        """
        z = widened(noise)
        steps = straight_steps(schedule, z)
        for i, (keep, gain) in enumerate(zip(steps.keep, steps.gain, strict=True)):
            first = slope(predict, schedule.process, z, steps.times[i])
            ahead = keep * z + gain * first
            if i + 1 < len(steps.gain):
                second = slope(predict, schedule.process, ahead, steps.times[i + 1])
                ahead = keep * z + gain * (first + second) / 2
            z = ahead
        return z
