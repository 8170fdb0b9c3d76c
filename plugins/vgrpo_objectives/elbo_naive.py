"""V-GRPO without its variance reductions: what the plain denoising loss does as a likelihood."""

from __future__ import annotations

from pydantic import Field

from vgrpo_core.vgrpo import VGRPO


class ElboNaive(VGRPO):
    """V-GRPO with all variance reductions off: own pairs for each sample, uniform times, the plain squared error."""

    name = "elbo_naive"

    shared: bool = Field(default=False, description="share pairs inside a group; false draws them for each sample")
    stratified: bool = Field(default=False, description="draw one time in each of equal segments; false draws uniformly")
    adaptive: bool = Field(default=False, description="divide the squared error by its detached mean absolute error")
