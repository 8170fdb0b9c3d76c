"""What samplers that draw noise on the way share: a flow's path as a stochastic process with the same marginals.

For any deviation g(t), dz = (v - g^2 score / 2) dt + g dw has them, where score = -noise / t is made of the noise that the network
predicts. The samplers differ in g and in which steps draw noise; Flow-GRPO's and DanceGRPO's steps are both this one.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import Field

from vgrpo_core import PluginError, StochasticSampler, Trajectory

from .euler import Euler

if TYPE_CHECKING:
    from torch import Tensor

    from vgrpo_core import Process, Schedule
    from vgrpo_core.plugin import Draw, Predict

NEARLY_ONE = 1 - 1e-4  # a pipeline's shift may leave its first time a rounding error beside 1


@dataclass(frozen=True)
class Steps:
    """The steps of one schedule, as Gaussians."""

    process: Process
    times: Tensor
    """float32 [steps + 1]."""
    deviation: Tensor
    """g at the start of each step, per root of time: [steps]."""

    @property
    def std(self) -> Tensor:
        """Return the deviation of what each step draws, g sqrt(-dt): [steps]."""
        return self.deviation * (-self.times.diff()).sqrt()

    def mean(self, output: Tensor, z: Tensor, step: int) -> Tensor:
        """Return the mean of a step from latents z [B, *D] and the network's output there; with g = 0 it is Euler's step."""
        output, t = output.to(z.dtype), self.times[step]
        noise = self.process.noise_from(output, z, t)
        flow = self.process.prediction == "flow"
        velocity = output if flow else noise - self.process.data_from(output, z, t)
        return z + (self.times[step + 1] - t) * (velocity + self.deviation[step] ** 2 / (2 * t) * noise)


class FlowPath(StochasticSampler):
    """Draw noise in some of a flow's steps while training; in evaluation, and in the other steps, follow Euler's method."""

    noise: float = Field(default=0.7, ge=0, description="how much noise a step draws; 0 draws none")

    @property
    def noisy_steps(self) -> int:
        """Count the steps that draw noise."""
        return len(self.window(1)) if self.noise else 0

    def window(self, iteration: int) -> range:
        """Return the steps that draw noise in an iteration: all but the last, whose noise would stay in the latents."""
        return range(self.steps - 1)

    @abstractmethod
    def deviation(self, times: Tensor) -> Tensor:
        """Return g at the start of each step between `times` [steps + 1]: [steps]."""

    def sample(self, predict: Predict, noise: Tensor, schedule: Schedule) -> Tensor:
        """Take Euler's steps, without noise; PluginError where the model is no flow."""
        self.check(schedule.process)
        return Euler(steps=self.steps).sample(predict, noise, schedule)

    def explore(self, predict: Predict, noise: Tensor, schedule: Schedule, draw: Draw, iteration: int) -> Trajectory:
        """Take Euler's steps up to the window, noisy ones inside it, and `finish`; PluginError where the model is no flow."""
        self.check(schedule.process)
        window, times = self.window(iteration), schedule.times.to(noise.device).float()
        steps, part = Steps(schedule.process, times, self.deviation(times)), slice(window.start, window.stop)
        std = steps.std
        z = Euler().sample(predict, noise.float(), replace(schedule, times=times[: window.start + 1]))
        kept = z.new_empty(3, len(z), len(window), *z.shape[1:])
        for k, step in enumerate(window):
            mean = steps.mean(predict(z, times[step]), z, step)
            after = mean + std[step] * draw(step)
            kept[0][:, k], kept[1][:, k], kept[2][:, k] = z, after, mean
            z = after
        latents = self.finish(predict, z, replace(schedule, times=times[window.stop :]))
        before, after, mean = kept
        ends = times.unfold(0, 2, 1)[part]
        return Trajectory(latents, before, after, mean, std[part], ends, lambda output, z, k: steps.mean(output, z, window[k]))

    def finish(self, predict: Predict, z: Tensor, rest: Schedule) -> Tensor:
        """Go on from the window's end along the times that are left, the first of which z [B, *D] is at."""
        return Euler().sample(predict, z, rest)

    def check(self, process: Process) -> None:
        """Refuse a model that is no flow."""
        if process.alphas_cumprod is not None:
            why = "it needs a flow, and this model is a variance-preserving diffusion"
            fix = 'use "ddim" or "dpmsolver++", with an objective that learns from finished images, such as "vgrpo"'
            raise PluginError(f'sampler "{self.name}" does not fit this model', why, fix)


def rising(times: Tensor, noise: float) -> Tensor:
    """Return Flow-GRPO's g = a sqrt(t / (1 - t)) at the start of each step: [steps]; where t is 1, 1 - t is the next time's."""
    t = times[:-1]
    return noise * (t / (1 - t.where(t < NEARLY_ONE, times[1]))).sqrt()
