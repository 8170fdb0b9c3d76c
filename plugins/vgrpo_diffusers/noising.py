"""What a pipeline's scheduler says of its noising process and of its times."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vgrpo_core import PluginError, Process, Schedule
from vgrpo_core.errors import nearest
from vgrpo_core.process import STEPS, Prediction

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
            f"known: flow matching, {', '.join(PREDICTIONS)}", "save the pipeline with a scheduler of the kind that it was trained with",
        )  # fmt: skip
    return Process(PREDICTIONS[kind], scheduler.alphas_cumprod.double())


def schedule_of(scheduler: Any, process: Process) -> Schedule:
    """Read the times of a scheduler whose timesteps are set: float32 [steps + 1], ending at clean data."""
    times = flow_times(scheduler) if process.alphas_cumprod is None else diffusion_times(scheduler)
    if not bool((times.diff() < 0).all()):
        raise PluginError(f"the times of {type(scheduler).__name__} do not fall: {times.tolist()}")
    return Schedule(times, process, dict(scheduler.config))


def flow_times(scheduler: Any) -> Tensor:
    """Return the scheduler's sigmas, shift included; t = sigma is what `Process` means by time."""
    sigmas: Tensor = scheduler.sigmas.float().cpu()
    timesteps = scheduler.timesteps.float().cpu()
    if len(sigmas) != len(timesteps) + 1 or not torch.allclose(timesteps, sigmas[:-1] * STEPS, atol=1.0):
        raise PluginError(f"{type(scheduler).__name__}: its timesteps are not its sigmas times {STEPS}")
    return sigmas


def diffusion_times(scheduler: Any) -> Tensor:
    """Return timesteps / 1000 and clean data, one timestep before the first."""
    timesteps = scheduler.timesteps.double().cpu()
    return torch.cat([timesteps, timesteps.new_tensor([-1.0])]).div(STEPS).float()
