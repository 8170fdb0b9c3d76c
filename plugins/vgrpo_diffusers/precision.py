"""Which precision each part of a pipeline has, and where arithmetic stays in float32 whatever `dtype` says."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .lora import SECOND

DENOISERS = ("transformer", SECOND, "unet")


def dtypes(dtype: torch.dtype, config: Mapping[str, Any], *, adapted: bool) -> dict[str, torch.dtype]:
    """Return the precision to load each component in: float32 for a VAE and for weights to be trained, `dtype` for the rest.

    Rounding at loading time and casting back would lose what the files hold.
    """
    exact = [name for name in config if "vae" in name or (name in DENOISERS and not adapted)]
    return {"default": dtype, **dict.fromkeys(exact, torch.float32)}


@contextmanager
def float32_calls(pipe: Any) -> Iterator[None]:
    """Let a pipeline that draws or decodes see its embeddings in float32: many give latents the precision of their embeddings."""
    encode = pipe.encode_prompt
    pipe.encode_prompt = lambda *args, **kwargs: upcast(encode(*args, **kwargs))
    try:
        yield
    finally:
        pipe.encode_prompt = encode


def upcast(part: Any) -> Any:
    """Return tensors of floats, also in lists and tuples, as float32; anything else as it is."""
    if isinstance(part, list | tuple):
        return type(part)(upcast(each) for each in part)
    return part.float() if isinstance(part, Tensor) and part.is_floating_point() else part


def keep_float32(pipe: Any, device: torch.device) -> None:
    """Let nothing round what a pipeline's text encoders and VAEs do, wherever they are called."""
    pipe.encode_prompt = without_autocast(pipe.encode_prompt, device)
    for name, part in pipe.components.items():
        if "vae" in name and part is not None:
            part.decode = without_autocast(part.decode, device, wide=True)


def without_autocast(function: Callable[..., Any], device: torch.device, *, wide: bool = False) -> Callable[..., Any]:
    """Wrap a function so that it returns the same inside autocast and outside; `wide` gives it its tensors in float32."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, enabled=False):
            if wide:
                args, kwargs = upcast(args), {key: upcast(value) for key, value in kwargs.items()}
            return function(*args, **kwargs)

    return call
