"""DDIM without added noise: what variance-preserving pipelines do by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgrpo_core import PluginError, Sampler

from .straight import widened

if TYPE_CHECKING:
    from torch import Tensor

    from vgrpo_core import Schedule
    from vgrpo_core.plugin import Predict


class DDIM(Sampler):
    """One evaluation a step, first order, for variance-preserving models (Song et al., arXiv 2010.02502, eta 0)."""

    name = "ddim"

    def sample(self, predict: Predict, noise: Tensor, schedule: Schedule) -> Tensor:
        """Split the latents into predicted data and noise, and mix them again at the next time; PluginError on a flow."""
        z, process = widened(noise), schedule.process
        if process.alphas_cumprod is None:
            why = "it needs a variance-preserving process, and this model is a flow"
            raise PluginError('sampler "ddim" does not fit this model', why, 'use "euler", which takes the same steps on a flow')
        times = schedule.times.to(z)
        alpha, sigma = process.coefficients(times)
        for i, t in enumerate(times[:-1]):
            output = predict(z, t).to(z.dtype)
            z = alpha[i + 1] * process.data_from(output, z, t) + sigma[i + 1] * process.noise_from(output, z, t)
        return z
