"""Gaussian data, for which the perfect network and the exact probability-flow trajectory are closed forms."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from vgrpo_core import Process, Schedule
from vgrpo_samplers import DDIM, DPMSolver, Euler, Heun

MEAN, DEVIATION = 1.5, 0.6
ALPHAS_CUMPROD = np.cumprod(1 - np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2)  # Stable Diffusion's
CLEAN = -1 / 1000


@dataclass(frozen=True)
class Gaussian:
    """Data from N(MEAN, DEVIATION^2) seen through a process; alpha and sigma are worked out here again, without `Process`."""

    process: Process

    def levels(self, t):
        if self.process.alphas_cumprod is None:
            return 1 - float(t), float(t)
        square = np.exp(np.interp(float(t) * 1000, np.arange(-1, 1000), np.log([1, *ALPHAS_CUMPROD])))
        return square**0.5, (1 - square) ** 0.5

    def predict(self, z, t):
        alpha, sigma = self.levels(t)
        gain = alpha * DEVIATION**2 / (alpha**2 * DEVIATION**2 + sigma**2)
        data = MEAN + gain * (z - alpha * MEAN)
        noise = (z - alpha * data) / sigma
        outputs = {"flow": noise - data, "epsilon": noise, "v": alpha * noise - sigma * data, "sample": data}
        return outputs[self.process.prediction]

    def exact(self, z, start, end):
        (alpha, sigma), (alpha_end, sigma_end) = self.levels(start), self.levels(end)
        stretch = np.hypot(alpha_end * DEVIATION, sigma_end) / np.hypot(alpha * DEVIATION, sigma)
        return alpha_end * MEAN + stretch * (z - alpha * MEAN)

    def error(self, sampler, times, noise):
        """Return the largest distance between a sampler's latents and the exact ones."""
        latents = sampler.sample(self.predict, noise, Schedule(times, self.process))
        return float((latents - self.exact(noise, times[0], times[-1])).abs().max())


def gaussian(kind, prediction):
    alphas = torch.tensor(ALPHAS_CUMPROD) if kind == "variance preserving" else None
    return Gaussian(Process(prediction, alphas))


FLOW, VP = ("flow", "flow"), ("variance preserving", "epsilon")
OWN = [(Euler, *FLOW), (Euler, *VP), (DDIM, *VP), (Heun, *FLOW), (Heun, *VP), (DPMSolver, *FLOW), (DPMSolver, *VP)]


@pytest.fixture
def toy():
    """Return the maker of Gaussian toys: `toy("flow", "flow")`, `toy("variance preserving", "epsilon")`."""
    return gaussian


@pytest.fixture(params=OWN, ids=lambda p: f"{p[0].__name__}-{p[1].replace(' ', '-')}")
def case(request):
    """Yield each of our own samplers with each process that it integrates: (sampler class, toy)."""
    sampler, *process = request.param
    return sampler, gaussian(*process)


@pytest.fixture
def noise():
    return torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def full():
    """Return a whole schedule of a process in float32, noise to data; the flow's is shifted by 3, as Stable Diffusion 3's."""

    def times(toy, steps):
        if toy.process.alphas_cumprod is None:
            plain = torch.linspace(1, 0, steps + 1)
            return 3 * plain / (1 + 2 * plain)
        return torch.linspace(0.999, CLEAN, steps + 1)

    return times
