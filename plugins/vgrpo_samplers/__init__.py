"""Deterministic ways from noise to finished latents, on the pipeline's own float times.

A sampler sees a function, never a model: nothing here knows of pipelines, rewards or recipes.
"""

from __future__ import annotations

from vgrpo_core import Sampler, hookimpl

from .ddim import DDIM
from .dpmsolver import DPMSolver
from .euler import Euler
from .heun import Heun
from .scheduler import Scheduler

__all__ = ["DDIM", "DPMSolver", "Euler", "Heun", "Scheduler", "vgrpo_samplers"]


@hookimpl
def vgrpo_samplers() -> list[type[Sampler]]:
    """Offer the integrators of this package and every scheduler of diffusers that fits."""
    return [Euler, Heun, DPMSolver, DDIM, Scheduler]
