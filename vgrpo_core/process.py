"""The noising process: the one place where flow matching and variance-preserving diffusion differ.

Times are `t = timestep / 1000`, float32, so that a network that wants the timestep is given `1000 t`. Shapes: z, x, noise, output
[B, *D]; t scalar or [B].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Prediction = Literal["flow", "epsilon", "v", "sample"]
STEPS = 1000  # training timesteps of every published model


@dataclass(frozen=True)
class Process:
    """Describe `z_t = alpha(t) x + sigma(t) noise` and what the network predicts of it.

    Without `alphas_cumprod` it is the rectified flow: alpha = 1 - t, sigma = t. With it, [1000] values of a
    variance-preserving diffusion: alpha^2 = alphas_cumprod at timestep 1000 t, log-linear between timesteps, and clean data
    (alpha = 1) one timestep before the first, at t = -1/1000.
    """

    prediction: Prediction
    alphas_cumprod: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse a prediction type that the process has not."""
        if self.prediction == ("v" if self.alphas_cumprod is None else "flow"):
            raise ValueError(f'prediction "{self.prediction}" does not belong to this noising process')

    def coefficients(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return alpha and sigma in the shape of `t`."""
        if self.alphas_cumprod is None:
            return 1 - t, t
        logs = torch.cat([self.alphas_cumprod.new_zeros(1), self.alphas_cumprod.clamp(min=1e-30).log()]).to(t)
        position = (t * STEPS + 1).clamp(0, len(logs) - 1)
        low = position.floor().long().clamp(max=len(logs) - 2)
        square = torch.lerp(logs[low], logs[low + 1], position - low).exp()
        return square.sqrt(), (1 - square).sqrt()

    def mix(self, x: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Noise data: alpha x + sigma noise."""
        alpha, sigma = self._coefficients(t, x)
        return alpha * x + sigma * noise

    def data_from(self, output: Tensor, z: Tensor, t: Tensor) -> Tensor:
        """Turn the network's output into its prediction of the data (x-prediction; method, section 2.3)."""
        alpha, sigma = self._coefficients(t, z)
        match self.prediction:
            case "flow":  # output is d z / d t = noise - x
                return z - sigma * output
            case "epsilon":
                return (z - sigma * output) / alpha
            case "v":
                return alpha * z - sigma * output
            case "sample":
                return output

    def noise_from(self, output: Tensor, z: Tensor, t: Tensor) -> Tensor:
        """Turn the network's output into its prediction of the noise."""
        alpha, sigma = self._coefficients(t, z)
        match self.prediction:
            case "flow":
                return z + alpha * output
            case "epsilon":
                return output
            case "v":
                return sigma * z + alpha * output
            case "sample":
                return (z - alpha * output) / sigma

    def _coefficients(self, t: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        alpha, sigma = self.coefficients(t.to(like.device))
        shape = (-1, *[1] * (like.ndim - 1)) if t.ndim else ()
        return alpha.view(shape), sigma.view(shape)


@dataclass(frozen=True)
class Schedule:
    """The times that a sampler visits: the pipeline's own, shift included, from noise to data; float32 [steps + 1], falling.

    `scheduler` is the configuration of the pipeline's own scheduler, for samplers that build a scheduler from it.
    """

    times: Tensor
    process: Process
    scheduler: Mapping[str, Any] = field(default_factory=dict)
