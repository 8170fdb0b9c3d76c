"""Load a pipeline, freeze what is not trained, and check the recipe's options against it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vgrpo_core import PluginError
from vgrpo_core.errors import nearest

from .exceptions import exception
from .guidance import SCALES
from .lean import denoisers
from .lora import add_lora
from .memory import place
from .network import prepare
from .policy import PipelinePolicy
from .precision import dtypes, keep_float32
from .source import find

if TYPE_CHECKING:
    from . import Diffusers

OURS = (
    "self", "prompt", "num_images_per_prompt", "latents", "generator", "num_inference_steps", "output_type", "return_dict",
    "height", "width",
)  # fmt: skip


def load(options: Diffusers, device: torch.device) -> PipelinePolicy:
    """Return the policy that `options` describe, on `device`; it has drawn noise once, to hear now what the pipeline refuses."""
    dtype: torch.dtype = getattr(torch, options.dtype)
    pipe = pretrained(options.model, dtype, adapted=options.lora is not None)
    pipe.set_progress_bar_config(disable=True)
    place(pipe, device, offload=options.offload)
    keep_float32(pipe, device)
    freeze(pipe)
    for module in denoisers(pipe).values():
        if options.lora:
            add_lora(module, options.lora)
        else:
            module.requires_grad_(True).float()
        prepare(module, options)
    cls, evaluation = type(pipe), {**options.call, **options.eval_call}
    check(cls, call=options.call, eval_call=options.eval_call)
    policy = PipelinePolicy(pipe, arguments(cls, options.size, options.call), dtype, arguments(cls, options.size, evaluation))
    try:
        draw_once(policy)
    except (TypeError, ValueError) as error:
        raise PluginError(f'model "{options.model}": {cls.__name__} refuses its size or call arguments', str(error)) from error
    return policy


def draw_once(policy: PipelinePolicy) -> None:
    """Draw noise as rollouts and as evaluation do: a pipeline checks its arguments first."""
    policy.noise([""], [torch.Generator()])
    with policy.evaluating():
        policy.noise([""], [torch.Generator()])


def pretrained(model: str, dtype: torch.dtype, *, adapted: bool) -> Any:
    """Load a pipeline from a hub id, a folder or a package; components that it lacks are passed as None, as diffusers wants."""
    from diffusers import DiffusionPipeline
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    for logging in (diffusers_logging, transformers_logging):  # a bar for each component would bury the run's own
        logging.disable_progress_bar()
    source = find(model)
    try:
        config = DiffusionPipeline.load_config(source.name)
        absent = {name: None for name, value in config.items() if isinstance(value, list | tuple) and not any(value)}
        return DiffusionPipeline.from_pretrained(source.name, dtype=dtypes(dtype, config, adapted=adapted), **absent)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, AttributeError, ImportError) as error:
        why = str(error).strip() or type(error).__name__
        fix = "" if Path(source.name).is_dir() else "check the name and the connection; a gated model needs `hf auth login`"
        raise PluginError(f'model "{model}" can\'t be loaded', why.splitlines()[0], fix) from error


def freeze(pipe: Any) -> None:
    """Put every component in evaluation mode (no dropout) and take its gradients away."""
    for component in pipe.components.values():
        if isinstance(component, nn.Module):
            component.eval().requires_grad_(False)


def arguments(pipeline: type, size: tuple[int, int] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of every call: no classifier-free guidance, the size, and those given."""
    known = inspect.signature(pipeline.__call__).parameters
    scales = [name for name in SCALES if name in known and known[name].default is not None]
    sides = dict(zip(("height", "width"), size, strict=True)) if size else {}
    return {**dict.fromkeys(scales, 1.0), **exception(pipeline).call, **sides, **given}


def check(pipeline: type, **options: Mapping[str, Any]) -> None:
    """Refuse arguments, by the option that holds them, that a pipeline's call does not take or that are ours."""
    known = set(inspect.signature(pipeline.__call__).parameters) - set(OURS)
    unknown = [(option, name) for option, arguments in options.items() for name in arguments if name not in known]
    if unknown:
        hints = [f'{option} argument "{name}"{nearest(name, known)}' for option, name in unknown]
        raise PluginError("\n".join(hints), f"{pipeline.__name__} does not take it, or vgrpo sets it itself")
