"""Straight coordinates, in which a single data point's trajectory is a straight line whatever the process.

Flow: y = z, s = t, dy/ds = noise - data. Variance preserving: y = z / alpha, s = sigma / alpha, dy/ds = noise. A straight step
y' = y + (s' - s) dy/ds is written for z itself, z' = keep z + gain dy/ds, so that on a flow keep is exactly 1 and gain t' - t.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from vgrpo_core import Process, Schedule
    from vgrpo_core.plugin import Predict


class Steps(NamedTuple):
    """Hold what straight steps need: times [steps + 1], keep and gain [steps]."""

    times: Tensor
    keep: Tensor
    gain: Tensor


def widened(noise: Tensor) -> Tensor:
    """Return latents that a sampler may do arithmetic on: float32, or float64 where `noise` is."""
    import torch

    return noise.to(torch.promote_types(noise.dtype, torch.float32))


def straight_steps(schedule: Schedule, like: Tensor) -> Steps:
    """Turn a schedule into straight steps, in the precision and on the device of the latents `like`."""
    times = schedule.times.to(like)
    alpha, sigma = schedule.process.coefficients(times)
    scale = alpha.new_ones(len(alpha)) if schedule.process.alphas_cumprod is None else alpha
    keep = scale[1:] / scale[:-1]
    return Steps(times, keep, sigma[1:] - sigma[:-1] * keep)


def slope(predict: Predict, process: Process, z: Tensor, t: Tensor) -> Tensor:
    """Evaluate the network and return dy/ds [B, *D] from whatever it predicts."""
    output = predict(z, t).to(z.dtype)
    if process.prediction == "flow":
        return output  # as it is, without rounding, so that a step is the pipeline's own to the last bit
    noise = process.noise_from(output, z, t)
    return noise - process.data_from(output, z, t) if process.alphas_cumprod is None else noise
