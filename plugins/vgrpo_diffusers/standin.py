"""The scheduler's stand-in: what a pipeline is given in place of its scheduler while it runs zero steps or one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class StandIn:
    """Let a pipeline run at `timesteps`, one entry a step, and keep what it hands to `step`.

    `output` is the network's output in the convention of the pipeline's own scheduler; `asked` is how the pipeline would have set
    that scheduler's timesteps.
    """

    order = 1
    init_noise_sigma = 1.0

    def __init__(self, scheduler: Any, timesteps: Tensor) -> None:
        self.scheduler, self.timesteps, self.config = scheduler, timesteps, scheduler.config
        self.output: Tensor | None = None
        self.asked: dict[str, Any] = {}

    @property
    def sigmas(self) -> Tensor:
        """Return noise levels that fit `timesteps`, for pipelines that look at them."""
        return torch.cat([self.timesteps.flatten()[:1] / 1000, self.timesteps.new_zeros(1)])

    def set_timesteps(
        self, num_inference_steps: int | None = None, device: Any = None, sigmas: Any = None, mu: Any = None, timesteps: Any = None
    ) -> None:
        """Keep what the pipeline asks for and the scheduler understands; the timesteps stay ours."""
        asked = {"num_inference_steps": num_inference_steps, "device": device, "sigmas": sigmas, "mu": mu, "timesteps": timesteps}
        known = inspect.signature(self.scheduler.set_timesteps).parameters
        self.asked = {name: value for name, value in asked.items() if value is not None and name in known}

    def set_begin_index(self, begin_index: int = 0) -> None:
        """Ignore where the pipeline would start."""

    def scale_model_input(self, sample: Tensor, timestep: Any = None) -> Tensor:
        """Leave latents as they are: they are variance preserving already."""
        return sample

    def step(self, model_output: Tensor, timestep: Any, sample: Tensor, **_: Any) -> tuple[Tensor]:
        """Keep the network's output."""
        self.output = model_output
        return (sample,)


@contextmanager
def standing_in(pipe: Any, timesteps: Sequence[Any] | Tensor) -> Iterator[StandIn]:
    """Put a stand-in into a pipeline and take it out again, also after an exception."""
    scheduler = pipe.scheduler
    pipe.scheduler = standin = StandIn(scheduler, torch.as_tensor(timesteps))
    try:
        yield standin
    finally:
        pipe.scheduler = scheduler
