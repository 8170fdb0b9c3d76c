"""LoRA adapters on the denoiser, through peft as diffusers does it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vgrpo_core import PluginError
from vgrpo_core.errors import nearest

if TYPE_CHECKING:
    from . import LoRA

SECOND = "transformer_2"


def add_lora(module: nn.Module, options: LoRA) -> None:
    """Freeze `module` and add trainable float32 adapters to its targets, in evaluation mode as the rest."""
    from peft import LoraConfig, inject_adapter_in_model

    module.requires_grad_(False)
    alpha = options.rank if options.alpha is None else options.alpha
    targets = matched(module, options.targets) if options.targets else attention(module)
    config = LoraConfig(r=options.rank, lora_alpha=alpha, init_lora_weights="gaussian", target_modules=targets)  # type: ignore[arg-type]
    if hasattr(module, "add_adapter"):
        module.add_adapter(config)  # type: ignore[operator]
    else:  # a class that diffusers has not taught adapters, such as PixArt's
        inject_adapter_in_model(config, module)
    module.eval()
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def attention(module: nn.Module) -> list[str]:
    """Return the full names of all attention projections: every linear layer in a module that has an attention processor."""
    blocks = [f"{name}." for name, part in module.named_modules() if hasattr(part, "processor")]
    layers = dict(module.named_modules())
    return [name for name in linear(module) if name.startswith(tuple(blocks)) and isinstance(layers[name], nn.Linear)]


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
    """Write adapters, alpha included, for the pipeline's own `load_lora_weights`; where it has none, for peft's `PeftModel`."""
    from diffusers.training_utils import _collate_lora_metadata  # the only writer of the metadata that keeps alpha
    from peft import get_peft_model_state_dict

    module = getattr(pipe, component)
    layers = get_peft_model_state_dict(module)
    if not hasattr(pipe, "save_lora_weights"):
        save_peft(module, layers, folder)
        return
    if component == SECOND:  # saved and loaded under the first one's name
        component, folder = "transformer", folder / SECOND
    type(pipe).save_lora_weights(folder, **{f"{component}_lora_layers": layers}, **_collate_lora_metadata({component: module}))


def save_peft(module: nn.Module, layers: dict[str, Tensor], folder: Path) -> None:
    """Write adapters for `PeftModel.from_pretrained`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    module.peft_config["default"].save_pretrained(folder)  # type: ignore[index, union-attr]
    named = {f"base_model.model.{name}": tensor.contiguous() for name, tensor in layers.items()}
    save_file(named, folder / "adapter_model.safetensors")
