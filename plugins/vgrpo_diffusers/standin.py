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

    `output` is the network's output in the convention of the pipeline's own scheduler.
    """

    order = 1
    init_noise_sigma = 1.0

    def __init__(self, scheduler: Any, timesteps: Tensor) -> None:
        self.scheduler, self.timesteps, self.config = scheduler, timesteps, scheduler.config
        self.output: Tensor | None = None
        self.wished: dict[str, Any] = {}

    @property
    def sigmas(self) -> Tensor:
        """Return noise levels that fit `timesteps`, for pipelines that look at them."""
        return torch.cat([self.timesteps.flatten()[:1] / 1000, self.timesteps.new_zeros(1)])

    def set_timesteps(
        self, num_inference_steps: int | None = None, device: Any = None, sigmas: Any = None, mu: Any = None, timesteps: Any = None
    ) -> None:
        """Keep what the pipeline asks for; the timesteps stay ours."""
        wished = {"num_inference_steps": num_inference_steps, "device": device, "sigmas": sigmas, "mu": mu, "timesteps": timesteps}
        self.wished = {name: value for name, value in wished.items() if value is not None}

    @property
    def asked(self) -> dict[str, Any]:
        """Return how the pipeline would have set its own scheduler's timesteps: what that scheduler understands."""
        known = inspect.signature(self.scheduler.set_timesteps).parameters
        return {name: value for name, value in self.wished.items() if name in known}

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
    parts = vars(pipe)  # an assignment would write the class into the pipeline's configuration, which takes its time
    parts["scheduler"] = standin = StandIn(scheduler, torch.as_tensor(timesteps))
    try:
        yield standin
    finally:
        parts["scheduler"] = scheduler
