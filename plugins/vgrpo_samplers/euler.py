"""Euler's method: one evaluation a step, first order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgrpo_core import Sampler

from .straight import slope, straight_steps, widened

if TYPE_CHECKING:
    from torch import Tensor

    from vgrpo_core import Schedule
    from vgrpo_core.plugin import Predict


class Euler(Sampler):
    """One evaluation a step, first order: what flow pipelines do by default; DDIM on variance-preserving processes."""

    name = "euler"

    def sample(self, predict: Predict, noise: Tensor, schedule: Schedule) -> Tensor:
        """Follow the slope at the start of each step."""
        z = widened(noise)
        steps = straight_steps(schedule, z)
        for i in range(len(steps.gain)):
            z = steps.keep[i] * z + steps.gain[i] * slope(predict, schedule.process, z, steps.times[i])
        return z
