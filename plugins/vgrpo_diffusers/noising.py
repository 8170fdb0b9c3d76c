"""What a pipeline's scheduler says of its noising process and of its times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vgrpo_core import PluginError, Process, Schedule
from vgrpo_core.errors import nearest
from vgrpo_core.process import STEPS, Prediction

Told = Callable[[Tensor], Tensor]
PREDICTIONS: dict[str, Prediction] = {"epsilon": "epsilon", "v_prediction": "v", "sample": "sample"}


def is_flow(scheduler: Any) -> bool:
    """Tell flow matching from variance-preserving diffusion."""
    config = scheduler.config
    return "FlowMatch" in type(scheduler).__name__ or config.get("prediction_type") == "flow_prediction"


def process_of(scheduler: Any) -> Process:
    """Read the noising process and the prediction type; what we can't train is a PluginError."""
    if is_flow(scheduler):
        return Process("flow")
    kind = scheduler.config.get("prediction_type", "epsilon")
    if kind not in PREDICTIONS or not hasattr(scheduler, "alphas_cumprod"):
        raise PluginError(
            f'the pipeline\'s {type(scheduler).__name__} predicts "{kind}"{nearest(kind, PREDICTIONS)}',
            f"known: flow matching, {', '.join(PREDICTIONS)}",
            "save the pipeline with a scheduler of the kind that it was trained with",
        )  # fmt: skip
    return Process(PREDICTIONS[kind], scheduler.alphas_cumprod.double())


def schedule_of(scheduler: Any, process: Process, steps: int, told: Told = lambda times: times) -> Schedule:
    """Read the times of a scheduler that was asked for `steps`: float32 [steps + 1], ending at clean data.

    `told` turns times into the timestep / 1000 that a network is told of them.

    A time that a higher-order scheduler visits twice in a row counts once; other times than asked for are a PluginError.
    """
    visited = flow_times(scheduler, told) if process.alphas_cumprod is None else diffusion_times(scheduler)
    times = torch.unique_consecutive(visited)
    name, fix = type(scheduler).__name__, "save the pipeline with FlowMatchEulerDiscreteScheduler or, for diffusion, DDIMScheduler"
    if len(times) != steps + 1:
        raise PluginError(f"{name} was asked for {steps} steps and makes {len(times) - 1}", fix=fix)
    if not bool((times.diff() < 0).all()):
        raise PluginError(f"the times of {name} do not fall: {times.tolist()}", fix=fix)
    return Schedule(times, process, dict(scheduler.config))


def flow_times(scheduler: Any, told: Told = lambda times: times) -> Tensor:
    """Return the scheduler's sigmas, shift included; t = sigma is what `Process` means by time."""
    sigmas: Tensor = scheduler.sigmas.float().cpu()
    timesteps = scheduler.timesteps.float().cpu()
    if len(sigmas) != len(timesteps) + 1 or not torch.allclose(timesteps, told(sigmas[:-1]).float() * STEPS, atol=1.0):
        raise PluginError(f"{type(scheduler).__name__}: its timesteps are not its sigmas times {STEPS}")
    return sigmas


def diffusion_times(scheduler: Any) -> Tensor:
    """Return timesteps / 1000 and clean data, one timestep before the first."""
    timesteps = scheduler.timesteps.double().cpu()
    return torch.cat([timesteps, timesteps.new_tensor([-1.0])]).div(STEPS).float()


def timesteps_at(t: Tensor, process: Process) -> Tensor:
    """Return 1000 t in float32; a whole timestep of a diffusion is whole again, which float32 loses: 0.251 becomes 250.99998."""
    timesteps = t.double() * STEPS
    if process.alphas_cumprod is not None:
        whole = timesteps.round()
        timesteps = whole.where((timesteps - whole).abs() < 1e-4, timesteps)
    return timesteps.float()
