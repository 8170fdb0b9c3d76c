"""LoRA adapters on the denoiser, through peft as diffusers does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from vgrpo_core import PluginError
from vgrpo_core.errors import nearest

if TYPE_CHECKING:
    from . import LoRA

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")


def add_lora(module: nn.Module, options: LoRA) -> None:
    """Freeze `module` and add trainable float32 adapters to its targets, in evaluation mode as the rest."""
    from peft import LoraConfig

    module.requires_grad_(False)
    alpha = options.rank if options.alpha is None else options.alpha
    targets = matched(module, options.targets) if options.targets else attention(module)
    config = LoraConfig(r=options.rank, lora_alpha=alpha, init_lora_weights="gaussian", target_modules=targets)  # type: ignore[arg-type]
    module.add_adapter(config)  # type: ignore[operator]
    module.eval()
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def attention(module: nn.Module) -> list[str]:
    """Return the full names of all attention projections."""
    return [name for name in linear(module) if name.endswith(tuple(f".{part}" for part in ATTENTION))]


def matched(module: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Return the full names of the layers that end in one of `patterns`; one that matches nothing is a PluginError."""
    names = linear(module)
    found = {pattern: [name for name in names if name == pattern or name.endswith(f".{pattern}")] for pattern in patterns}
    endings = {".".join(name.split(".")[-parts:]) for name in names for parts in (1, 2)}
    empty = [f'lora target "{pattern}" matches no layer{nearest(pattern, endings)}' for pattern, hits in found.items() if not hits]
    if empty:
        raise PluginError("\n".join(empty), "a target is the full name of a linear layer or its last parts, such as attn.to_q")
    return sorted({name for hits in found.values() for name in hits})


def linear(module: nn.Module) -> list[str]:
    """Return the names of the layers that can be adapted."""
    return [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)]


def save_lora(pipe: Any, component: str, folder: Path) -> None:
    """Write adapters, alpha included, for the pipeline's own `load_lora_weights`."""
    from diffusers.training_utils import _collate_lora_metadata  # the only writer of the metadata that keeps alpha
    from peft import get_peft_model_state_dict

    module = getattr(pipe, component)
    layers = {f"{component}_lora_layers": get_peft_model_state_dict(module)}
    type(pipe).save_lora_weights(folder, **layers, **_collate_lora_metadata({component: module}))
