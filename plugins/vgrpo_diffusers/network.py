"""Options of the denoiser as a network: gradient checkpointing, attention backends, compilation, each diffusers' own."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from torch import nn

from vgrpo_core import PluginError
from vgrpo_core.errors import nearest

if TYPE_CHECKING:
    from . import Diffusers

COMPILERS = ("g++", "clang++", "cl")
UNSOUND = {"ChromaTransformer2DModel": "diffusers then forgets the attention mask in its single blocks: outputs differ"}


def prepare(module: nn.Module, options: Diffusers) -> None:
    """Apply what `options` ask of a denoiser that has its adapters already."""
    if options.gradient_checkpointing:
        checkpoint(module)
    if options.attention:
        attend(module, options.attention)
    if options.compile:
        compile_blocks(module)


def checkpoint(module: nn.Module) -> None:
    """Keep only what enters each block, and compute the rest again in the backward pass; works in evaluation mode too."""
    name, fix = type(module).__name__, "remove the option"
    if name in UNSOUND:
        raise PluginError(f"{name} has no sound gradient checkpointing", UNSOUND[name], fix)
    try:
        module.enable_gradient_checkpointing()  # type: ignore[operator]
    except ValueError as error:
        raise PluginError(f"{name} has no gradient checkpointing", str(error), fix) from error


def attend(module: nn.Module, backend: str) -> None:
    """Choose the attention backend of a denoiser; one that is unknown or can't be trained through is a PluginError."""
    from diffusers.models.attention_dispatch import AttentionBackendName, attention_backend

    known = [name.value for name in AttentionBackendName if "sage" not in name.value]
    if "sage" in backend:
        raise PluginError(f'attention "{backend}" has no backward pass, so that nothing could be trained', fix="choose another")
    if backend not in known:
        raise PluginError(f'attention "{backend}" is unknown{nearest(backend, known)}', f"known: {', '.join(sorted(known))}")
    if not any(hasattr(getattr(layer, "processor", None), "_attention_backend") for layer in module.modules()):
        what = f"the attention of {type(module).__name__} takes no backend in this version of diffusers"
        raise PluginError(what, "it always uses PyTorch's scaled_dot_product_attention", "remove the option")
    try:
        with attention_backend(backend):  # set_attention_backend also changes the default of the process: put it back
            module.set_attention_backend(backend)  # type: ignore[operator]
    except (ValueError, RuntimeError, ImportError) as error:
        raise PluginError(f'attention "{backend}" can\'t be used here', str(error)) from error


def compile_blocks(module: nn.Module) -> None:
    """Compile the repeated blocks one by one where the model names them, else the whole network; names of weights stay."""
    if not (os.environ.get("CXX") or any(map(shutil.which, COMPILERS))):
        raise PluginError("torch.compile needs a C++ compiler", f"none of {', '.join(COMPILERS)} is on the path", "install one")
    if getattr(module, "_repeated_blocks", None):
        module.compile_repeated_blocks()  # type: ignore[operator]
    else:
        module.compile()
