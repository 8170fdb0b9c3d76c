"""Write a trained diffusers pipeline, and load it again as anybody would."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from vgrpo_core import Policy, Sampler
from vgrpo_core.plugin import Prompt
from vgrpo_core.rollout import Draws, sample
from vgrpo_diffusers import Diffusers
from vgrpo_diffusers.load import arguments, freeze, pretrained
from vgrpo_diffusers.memory import place
from vgrpo_diffusers.policy import PipelinePolicy
from vgrpo_diffusers.precision import keep_float32
from vgrpo_diffusers.verify import PROMPTS, TOLERANCE

from .usage import SECOND, WEIGHTS


class Expected(NamedTuple):
    """What a written pipeline has to do, and how it is called."""

    latents: Tensor
    adapters: Mapping[str, Tensor]
    call: Mapping[str, Any]
    absent: tuple[str, ...]
    """Components that `from_pretrained` has to be told are None."""
    loader: bool
    """Whether its class has `load_lora_weights`."""

    @classmethod
    def of(cls, policy: PipelinePolicy, sampler: Sampler) -> Expected:
        """Look at a policy with its trained weights."""
        kind, parts = type(policy.pipe), policy.pipe.components
        absent = tuple(name for name, part in parts.items() if part is None and name not in kind._optional_components)
        has_loader = hasattr(kind, "load_lora_weights")
        return cls(latents(policy, sampler), adapters(policy), policy.evaluation.call, absent, has_loader)


def check(expected: Expected, policy: PipelinePolicy, sampler: Sampler, *, whole: bool) -> float:
    """Compare what was loaded again with what was trained: the largest difference, as a share of the largest value.

    Adapters or latents that differ by more than rounding in the recipe's precision are a ValueError.
    """
    allowed, found, wanted = TOLERANCE[policy.dtype], adapters(policy), {} if whole else expected.adapters
    if found.keys() != wanted.keys():
        raise ValueError(f"it holds {len(found)} tensors of adapters, {len(wanted)} were trained")
    differing = [name for name, tensor in found.items() if not _apart(tensor, wanted[name]) <= allowed]
    if differing:
        raise ValueError(f"{len(differing)} of {len(found)} tensors of adapters differ, such as {differing[0]}")
    share = _apart(latents(policy, sampler), expected.latents)
    if not share <= allowed:
        raise ValueError(f"latents differ by {share:.1e} of their largest value, where {allowed:.0e} is allowed")
    return share


def _apart(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-12))


def latents(policy: Policy, sampler: Sampler) -> Tensor:
    """Draw finished latents of two prompts, on the CPU."""
    rows = Draws(0, "eval", tuple(map(Prompt, PROMPTS)), tuple((row, 0) for row in range(len(PROMPTS))))
    with policy.evaluating():
        return sample(policy, sampler, rows).cpu()


def write_whole(policy: PipelinePolicy, options: Diffusers, folder: Path) -> None:
    """Write the pipeline with its trained weights in float32, adapters merged; all else as precise as the recipe loads it."""
    pipe = pretrained(options.model, policy.dtype, adapted=False)
    for name, trained in policy.denoisers.items():
        if hasattr(trained, "peft_config"):
            merge(trained, getattr(pipe, name))
        else:
            getattr(pipe, name).load_state_dict(trained.state_dict())
    pipe.save_pretrained(folder)
    for config in folder.rglob("*.json"):
        _forget_place(config)


def _forget_place(config: Path) -> None:
    """Name the base in a saved configuration without its folder on this machine."""
    held = json.loads(config.read_text(encoding="utf-8"))
    if isinstance(held, dict) and Path(str(held.get("_name_or_path", ""))).is_absolute():
        held["_name_or_path"] = Path(held["_name_or_path"]).name
        config.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")


@torch.no_grad()
def merge(adapted: nn.Module, plain: nn.Module) -> None:
    """Add what adapters do to the weights of the layers that they are on: W + alpha / rank B A."""
    for name, layer, adapter in _adapters(adapted):
        weight: Any = plain.get_submodule(name).weight  # a parameter, which the sum changes in place
        weight += layer.get_delta_weight(adapter).to(weight)


def adapters(policy: PipelinePolicy) -> dict[str, Tensor]:
    """Return A and alpha / rank B of every adapted layer, on the CPU."""
    found = dict[str, Tensor]()
    for component, module in policy.denoisers.items():
        for name, layer, adapter in _adapters(module):
            found[f"{component}.{name}.A"] = layer.lora_A[adapter].weight.detach().float().cpu()
            found[f"{component}.{name}.B"] = layer.scaling[adapter] * layer.lora_B[adapter].weight.detach().float().cpu()
    return found


def reloaded(options: Diffusers, folder: Path, device: torch.device, *, whole: bool) -> PipelinePolicy:
    """Load what was written in a pipeline of its own: the whole of it, or adapters with the loader of its class."""
    dtype: torch.dtype = getattr(torch, options.dtype)
    pipe = pretrained(str(folder) if whole else options.model, dtype, adapted=not whole)
    pipe.set_progress_bar_config(disable=True)
    if not whole:
        _load_adapters(pipe, folder)
    place(pipe, device, offload=options.offload)
    keep_float32(pipe, device)
    freeze(pipe)
    return PipelinePolicy(pipe, arguments(type(pipe), options.size, {**options.call, **options.eval_call}), dtype)


def _load_adapters(pipe: Any, folder: Path) -> None:
    if not hasattr(pipe, "load_lora_weights"):
        from peft import PeftModel

        PeftModel.from_pretrained(pipe.transformer, str(folder))
        return
    pipe.load_lora_weights(folder, weight_name=WEIGHTS)
    if (folder / SECOND).is_dir():
        # a `subfolder` is overlooked where the folder itself has a file of that name
        pipe.load_lora_weights(folder, weight_name=f"{SECOND}/{WEIGHTS}", load_into_transformer_2=True)


def _adapters(module: nn.Module) -> Iterator[tuple[str, Any, str]]:
    """Yield the adapted layers by name, each with the name of its adapter."""
    for name, layer in module.named_modules():
        if isinstance(layer, BaseTunerLayer):
            yield name, layer, layer.active_adapters[0]
