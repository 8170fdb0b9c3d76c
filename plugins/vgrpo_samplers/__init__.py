"""Ways from noise to finished latents, on the pipeline's own float times; some draw noise on the way, in training only.

A sampler sees a function, never a model: nothing here knows of pipelines, rewards or recipes.
"""

from __future__ import annotations

from vgrpo_core import Sampler, hookimpl

from .dance_sde import DanceSDE
from .ddim import DDIM
from .dpmsolver import DPMSolver
from .euler import Euler
from .flow_sde import FlowSDE
from .heun import Heun
from .scheduler import Scheduler
from .window_sde import WindowSDE

__all__ = ["DDIM", "DPMSolver", "DanceSDE", "Euler", "FlowSDE", "Heun", "Scheduler", "WindowSDE", "vgrpo_samplers"]


@hookimpl
def vgrpo_samplers() -> list[type[Sampler]]:
    """Offer the integrators of this package and every scheduler of diffusers that fits."""
    return [Euler, Heun, DPMSolver, DDIM, Scheduler, FlowSDE, DanceSDE, WindowSDE]
