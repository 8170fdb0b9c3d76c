"""The pipelines that need something of their own: one entry a class, with its reason. Everything else goes without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Exceptional:
    """What a pipeline needs beside the common way, and why; `reasons` are sentences for the docs."""

    reasons: tuple[str, ...] = ()
    call: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of every call, unless the recipe sets them."""
    one_time: Callable[[Any], bool] = lambda pipe: False
    """Whether a call of this pipeline has one time for all of its rows; rows of other times then go through the network apart."""
    told: Callable[[Tensor, float], Tensor] | None = None
    """Turns times and the shift that the pipeline asks of its scheduler into timestep / 1000, where that is not the time itself."""
    prepare_latents: Callable[[Any], Callable[..., Any]] | None = None
    """Makes what stands where the pipeline's `prepare_latents` stood, and keeps the latents that it returned as `kept`."""
    mend: Callable[[Any], None] | None = None
    """Changes the loaded pipeline in place."""


def open_experts(pipe: Any) -> None:
    """Let gradients through the experts of HiDream, which in evaluation mode run under `torch.no_grad` and in place."""
    for part in pipe.transformer.modules():
        if hasattr(part, "moe_infer"):
            part.moe_infer = partial(routed, part.experts, part.num_activated_experts)


def routed(experts: Sequence[nn.Module], each: int, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Send every token of x [N, D] to its `each` experts, chosen [N each], and add what they say by weights [N each, 1]."""
    tokens = torch.arange(len(x), device=x.device).repeat_interleave(each)
    total = torch.zeros_like(x)
    for index, expert in enumerate(experts):
        rows = (chosen == index).nonzero().flatten()
        total = total.index_add(0, tokens[rows], (expert(x[tokens[rows]]) * weights[rows]).to(total.dtype))
    return total


class Packed:
    """Stand where FLUX.2's `prepare_latents` stood: let latents come in as its scheduler sees them, and keep them."""

    kept: Tensor

    def __init__(self, pipe: Any) -> None:
        self.prepare, self.pixels = pipe.prepare_latents, 2 * pipe.vae_scale_factor

    def __call__(self, *, height: int, width: int, latents: Tensor | None = None, **rest: Any) -> tuple[Tensor, Tensor]:
        """Unpack [B, S, C] to the grid [B, C, h, w] that the pipeline packs again."""
        if latents is not None:
            latents = latents.mT.reshape(len(latents), -1, height // self.pixels, width // self.pixels)
        self.kept, positions = self.prepare(height=height, width=width, latents=latents, **rest)
        return self.kept, positions


def unshifted(times: Tensor, mu: float) -> Tensor:
    """Undo the linear shift t = mu s / (1 + (mu - 1) s)."""
    return times / (times + mu * (1 - times))


def tells_times_apart(pipe: Any) -> bool:
    """Tell Wan 2.2 from Wan 2.1: it compares the time with a boundary between two networks, or lays it out by token."""
    return bool(pipe.config.get("boundary_ratio") or pipe.config.get("expand_timesteps"))


FLUX2 = Exceptional(
    (
        "`latents` of its call are a grid [B, C, h, w], those of its scheduler a sequence [B, h w, C]",
        'with `output_type="latent"`, FLUX.2 klein returns neither',
    ),
    prepare_latents=Packed,
)

EXCEPTIONS = {
    "AuraFlowPipeline": Exceptional(("it makes a Python number of the timestep: one time a call",), one_time=lambda pipe: True),
    "CogView4Pipeline": Exceptional(("its network is told the timestep before the shift, not 1000 sigma",), told=unshifted),
    "Flux2Pipeline": FLUX2,
    "Flux2KleinPipeline": FLUX2,
    "HiDreamImagePipeline": Exceptional(
        ("in evaluation mode its experts run under `torch.no_grad`, which silently cuts their gradients off",), mend=open_experts
    ),
    "PixArtSigmaPipeline": Exceptional(("it has no `load_lora_weights`: adapters are exported for peft's `PeftModel`",)),
    "WanPipeline": Exceptional(
        (
            "Wan 2.2 compares the timestep with a boundary, or lays it out by token: one time a call",
            "where it has two networks, both are trained; adapters of the second are for `load_into_transformer_2=True`",
        ),
        one_time=tells_times_apart,
    ),
    "ZImagePipeline": Exceptional(
        ("it guides whenever `guidance_scale` is above 0, not above 1: no guidance is 0",), call={"guidance_scale": 0.0}
    ),
}


def exception(pipeline: type) -> Exceptional:
    """Return the entry of a pipeline's class or of the nearest class that it extends; the common way has an empty one."""
    return next((EXCEPTIONS[cls.__name__] for cls in pipeline.__mro__ if cls.__name__ in EXCEPTIONS), Exceptional())
