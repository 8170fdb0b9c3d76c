"""Check a sampler on Gaussian data, for which the perfect network and the exact trajectory are closed forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import PluginError
from ..plugin import Sampler
from ..process import STEPS, Process, Schedule
from .light import check_light
from .plugin import check_class, expect, home

MEAN, DEVIATION = 1.5, 0.6
FEW, MANY = 8, 32  # steps
FLOOR = 0.01  # where schedulers that start or end a little beside the schedule stop getting better
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
DIFFUSION = {**BETAS, "clip_sample": False, "timestep_spacing": "trailing"}
"""What pipelines of Stable Diffusion 1 say of their scheduler, for samplers that build one from it."""


@dataclass(frozen=True)
class Toy:
    """Data from N(MEAN, DEVIATION^2), element by element, seen through a process."""

    kind: str
    process: Process
    scheduler: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name process and prediction, as `check_sampler` returns them."""
        return f"{self.kind}/{self.process.prediction}"

    def predict(self, z: Tensor, t: Tensor) -> Tensor:
        """Return what a perfect network predicts at latents z [B, *D] and times t (scalar or [B])."""
        alpha, sigma = self.process.coefficients(t.view(-1, *[1] * (z.ndim - 1)) if t.ndim else t)
        share = (z - alpha * MEAN) / (alpha**2 * DEVIATION**2 + sigma**2)
        data, noise = MEAN + alpha * DEVIATION**2 * share, sigma * share
        outputs = {"flow": noise - data, "epsilon": noise, "v": alpha * noise - sigma * data, "sample": data}
        return outputs[self.process.prediction]

    def exact(self, noise: Tensor, times: Tensor) -> Tensor:
        """Carry latents along the probability flow from the first time to the last: the deviation from the mean only stretches."""
        alpha, sigma = self.process.coefficients(times[[0, -1]])
        spread = (alpha**2 * DEVIATION**2 + sigma**2).sqrt()
        return alpha[1] * MEAN + spread[1] / spread[0] * (noise - alpha[0] * MEAN)

    def schedule(self, steps: int) -> Schedule:
        """Return evenly spaced times, from noise to data."""
        first, last = (1.0, 0.0) if self.kind == "flow" else (1 - 1 / STEPS, -1 / STEPS)
        return Schedule(torch.linspace(first, last, steps + 1), self.process, self.scheduler)


@dataclass
class Watched:
    """A toy's network that writes down what it is asked."""

    toy: Toy
    rows: int = 0
    times: list[Tensor] = field(default_factory=list)

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        """Predict, and keep times and the number of rows."""
        self.rows += len(z)
        self.times.append(t)
        return self.toy.predict(z, t)


def toys() -> list[Toy]:
    """Return a flow and a diffusion with each prediction that a network may make of them."""
    betas = torch.linspace(BETAS["beta_start"] ** 0.5, BETAS["beta_end"] ** 0.5, STEPS, dtype=torch.float64) ** 2  # type: ignore[operator]
    alphas = (1 - betas).cumprod(0).float()
    diffusion = [Toy("diffusion", Process(prediction, alphas), DIFFUSION) for prediction in ("epsilon", "v", "sample")]
    return [*(Toy("flow", Process(prediction), {"shift": 1.0}) for prediction in ("flow", "sample")), *diffusion]


def check_sampler(sampler: Sampler) -> list[str]:
    """Check a sampler where the exact result is known and return what it refuses; an AssertionError says what does not hold.

    It is tried on a flow and on a variance-preserving diffusion, whose networks predict "flow" or "sample", and "epsilon", "v" or
    "sample": "flow/sample" names one of these. Each has to be integrated well or refused with a PluginError, and one at least
    integrated. Then the latents keep the shape of the noise, which is left as it was; the network sees as many rows as
    `evaluations` says, at float times between the first and the last of the schedule; a call does not depend on the one before it,
    nor a row on the others; and 32 steps make less than half the error of 8, or hardly any. Importing its module has to be light.
    """
    check_class("sampler", type(sampler))
    known = toys()
    refused = [toy.name for toy in known if not _integrates(sampler, toy)]
    expect(len(refused) < len(known), f'sampler "{sampler.name}" refuses every process')
    if module := home(sampler):
        check_light(module)
    return refused


def _integrates(sampler: Sampler, toy: Toy) -> bool:
    """Check a sampler on one toy; False where it refuses."""
    who, noise = f'sampler "{sampler.name}" on {toy.name}', torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
    try:
        latents = _sampled(who, sampler, toy, noise)
    except PluginError:
        return False
    _sampled(who, sampler, toy, noise + 1)
    expect(torch.equal(_sampled(who, sampler, toy, noise), latents), f"{who}: a second call with the same noise ends elsewhere")
    alone = torch.cat([_sampled(who, sampler, toy, row[None]) for row in noise])
    expect(torch.allclose(alone, latents, rtol=0, atol=1e-4), f"{who}: a row ends elsewhere without the rows beside it")
    few, many = (_error(who, sampler.model_copy(update={"steps": steps}), toy, noise) for steps in (FEW, MANY))
    expect(
        many < max(few / 2, FLOOR), f"{who}: {MANY} steps make an error of {many:.2g}, {FEW} steps {few:.2g}: it does not converge"
    )
    return True


def _error(who: str, sampler: Sampler, toy: Toy, noise: Tensor) -> float:
    exact = toy.exact(noise, toy.schedule(sampler.steps).times)
    return float((_sampled(who, sampler, toy, noise) - exact).abs().max())


def _sampled(who: str, sampler: Sampler, toy: Toy, noise: Tensor) -> Tensor:
    """Sample, and check what holds for every call."""
    network, schedule, given = Watched(toy), toy.schedule(sampler.steps), noise.clone()
    latents = sampler.sample(network, given, schedule)
    expect(torch.equal(given, noise), f"{who} changes the noise that it is given")
    shape = f"{who} returns latents {list(latents.shape)} for noise {list(noise.shape)}"
    expect(latents.shape == noise.shape, shape)
    expect(bool(latents.isfinite().all()), f"{who} returns latents that are not finite")
    each = network.rows / len(noise)
    expect(
        each == sampler.evaluations, f"{who} evaluates the network {each:g} times a row, and `evaluations` is {sampler.evaluations}"
    )
    _check_times(who, network.times, schedule.times)
    return latents


def _check_times(who: str, visited: list[Tensor], times: Tensor) -> None:
    wide = all(t.dtype in (torch.float32, torch.float64) for t in visited)
    expect(wide, f"{who} rounds the times that it hands to the network: they have to be float32")
    seen = torch.cat([t.reshape(-1) for t in visited])
    inside = bool(((seen <= times.max() + 1e-5) & (seen >= times.min() - 1e-5)).all())
    found, given = (f"{ends.max():.4g} to {ends.min():.4g}" for ends in (seen, times))
    expect(inside, f"{who} visits times from {found}, and the schedule goes from {given}")
