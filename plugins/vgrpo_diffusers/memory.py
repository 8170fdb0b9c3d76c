"""Memory: what a recipe will need, and components that wait on the CPU until they are called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vgrpo_core import PluginError, Policy

from .lora import add_lora
from .precision import DENOISERS, dtypes
from .source import find

if TYPE_CHECKING:
    from . import Diffusers

CPU = torch.device("cpu")
FLOAT = 4  # bytes
PROMPT = "a photo of a red cat on a green chair"  # some text encoders pad nothing: a longer text takes more
MOMENTS = 2  # of AdamW, one value a weight each, besides one step counter a parameter


def place(pipe: Any, device: torch.device, *, offload: bool) -> None:
    """Move a pipeline to `device`; with `offload` its text encoders and VAEs stay on the CPU and come over while they work."""
    parts: dict[str, Any] = {name: part for name, part in pipe.components.items() if isinstance(part, nn.Module)}
    idle = {name: part for name, part in parts.items() if offload and waits(name)}
    for name, part in parts.items():
        part.to(CPU if name in idle else device)
    if idle and device.type != "cpu":
        encoders = [part for name, part in idle.items() if "vae" not in name]
        pipe.encode_prompt = visiting(pipe.encode_prompt, encoders, device)
        for name, part in idle.items():
            if "vae" in name:
                part.decode = visiting(part.decode, [part], device)


def waits(name: str) -> bool:
    """Tell the components that are idle while the denoiser works."""
    return name.startswith("text_encoder") or "vae" in name


def visiting(function: Callable[..., Any], modules: Iterable[nn.Module], device: torch.device) -> Callable[..., Any]:
    """Wrap a function that needs `modules` and its tensors on `device`: they go there for the call, the modules come back after."""
    guests = list(modules)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            for guest in guests:
                guest.to(device)
            return function(*(_moved(arg, device) for arg in args), **{key: _moved(arg, device) for key, arg in kwargs.items()})
        finally:
            for guest in guests:
                guest.to(CPU)

    return call


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def estimate(options: Diffusers) -> dict[str, int]:
    """Return the bytes of each component's weights, of "gradients" and of "optimizer" (AdamW), from configurations alone.

    Networks are built on the meta device. Activations are not included.
    """
    config = _config(options)
    kept = dtypes(getattr(torch, options.dtype), config, adapted=options.lora is not None)
    sizes: dict[str, int] = {}
    trained: list[nn.Parameter] = []
    for name, value in config.items():
        module = _empty(options, name, value) if isinstance(value, list | tuple) and any(value) else None
        if module is not None:
            sizes[name] = weights(module, kept.get(name, kept["default"]))
            trained += [parameter for parameter in module.parameters() if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in trained)
    return sizes | {"gradients": FLOAT * count, "optimizer": FLOAT * (MOMENTS * count + len(trained))}


def weights(module: nn.Module, dtype: torch.dtype) -> int:
    """Count the bytes of a network's parameters and buffers with what is frozen in `dtype`.

    Trained weights and layers that the network's class keeps in float32 count as float32; what files do not hold is not cast.
    """
    strict = "_keep_in_fp32_modules_strict"  # of transformers; its plain list is for float16 only, that of diffusers for both
    whole = set(getattr(module, strict if hasattr(module, strict) else "_keep_in_fp32_modules", None) or ())
    tensors: list[tuple[str, Tensor]] = [*module.named_parameters(), *module.named_buffers()]
    held = module.state_dict().keys()
    cast = {name for name, tensor in tensors if name in held and tensor.is_floating_point() and not tensor.requires_grad}
    return sum(
        tensor.numel() * (dtype.itemsize if name in cast and not whole & set(name.split(".")) else tensor.element_size())
        for name, tensor in tensors
    )


def _config(options: Diffusers) -> Mapping[str, Any]:
    from diffusers import DiffusionPipeline

    try:
        config: Mapping[str, Any] = DiffusionPipeline.load_config(find(options.model).name)
    except (OSError, ValueError) as error:
        raise PluginError(f'model "{options.model}": its configuration can\'t be read', str(error).splitlines()[0]) from error
    return config


def _empty(options: Diffusers, name: str, value: Any) -> nn.Module | None:
    """Build one component on the meta device, adapters included; None for what is no network."""
    from diffusers import ModelMixin
    from diffusers.pipelines.pipeline_loading_utils import simple_get_class_obj
    from transformers import PreTrainedModel

    source, cls = find(options.model).name, simple_get_class_obj(*value)  # type: ignore[no-untyped-call]
    with torch.device("meta"):
        if issubclass(cls, PreTrainedModel):
            module: nn.Module = cls(cls.config_class.from_pretrained(source, subfolder=name))
        elif issubclass(cls, ModelMixin):
            module = cls.from_config(cls.load_config(source, subfolder=name))
        else:
            return None
        module.requires_grad_(name in DENOISERS)
        if name in DENOISERS and options.lora:
            add_lora(module, options.lora)
    return module


def lines(options: Diffusers) -> list[str]:
    """Say the estimate for people: one line a part, then what is on the device at least."""
    sizes = estimate(options)
    width = max(map(len, sizes))
    idle = {name for name in sizes if options.offload and waits(name)}
    rows = [f"{name:{width}}  {said(size)}{', on the CPU when idle' if name in idle else ''}" for name, size in sizes.items()]
    total = sum(size for name, size in sizes.items() if name not in idle)
    return [*rows, f"{'together':{width}}  {said(total)}, without activations"]


def saved(policy: Policy, rows: int) -> int:
    """Count the bytes that a forward pass of some rows keeps for the backward pass, besides the network's weights and buffers."""
    weights = {address(part) for part in (*policy.module.parameters(), *policy.module.buffers())}
    kept: dict[tuple[torch.device, int], int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[address(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    prompts = [PROMPT] * rows
    noise = policy.noise(prompts, [torch.Generator() for _ in prompts])
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = policy.output(noise, torch.tensor(0.5), prompts)
    total = sum(size for place, size in kept.items() if place not in weights)
    del output  # no earlier: an address would be used again
    return total


def address(tensor: Tensor) -> tuple[torch.device, int]:
    """Return what tensors that share memory have in common."""
    return tensor.device, tensor.untyped_storage().data_ptr()


def activations(policy: Policy) -> int:
    """Measure the bytes that each further row of a micro-batch keeps for the backward pass: those of three rows less those of two.

    What rows have in common, such as weights that autocast has cast, is not in it. The first row may take less than the others, for
    what is broadcast over a single row can be a view of the weights.
    """
    return saved(policy, 3) - saved(policy, 2)


def measured(policy: Policy) -> str:
    """Say the activations of a loaded policy for people."""
    row = activations(policy)
    once = saved(policy, 2) - 2 * row
    return f"activations {said(row).strip()} per row of a micro-batch and {said(once).strip()} once (measured with 2 and 3 rows)"


def said(size: int) -> str:
    """Write bytes in GB, or in MB where they are few."""
    return f"{size / 1e9:8.2f} GB" if size >= 1e9 else f"{size / 1e6:8.2f} MB"
