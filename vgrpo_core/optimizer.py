"""AdamW with a warm-up, a decay and a clipped gradient, which refuses what is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .copies import AVERAGE, Copies
from .errors import Diverged
from .events import Metrics

if TYPE_CHECKING:
    from .recipe import Recipe

REFUSED_LIMIT = 3  # non-finite gradients in a row before the run stops
FLOOR = 0.1  # the share of the learning rate that a decay ends at

Decay = Literal["none", "linear", "cosine"]


def rate(iteration: int, iterations: int, *, warmup: int, decay: Decay) -> float:
    """Return the share of the learning rate in an iteration, from 1: a linear warm-up, then a decay to a tenth at the last."""
    if iteration <= warmup:
        return iteration / (warmup + 1)
    progress = min(1.0, (iteration - warmup) / max(1, iterations - warmup))
    shape = {"none": 1.0, "linear": 1 - progress, "cosine": 0.5 * (1 + math.cos(math.pi * progress))}[decay]
    return FLOOR + (1 - FLOOR) * shape


class Optimizer:
    """Hold the moments of the trained parameters, and let their moving average follow where the recipe asks for one."""

    def __init__(self, recipe: Recipe, copies: Copies) -> None:
        self.options, self.iterations, o = recipe.optimizer, recipe.run.iterations, recipe.optimizer
        self.copies, self.named, self.parameters = copies, copies.parameters, list(copies.parameters.values())
        self.adamw = _adamw(o.bits)(self.parameters, lr=o.lr, betas=o.betas, weight_decay=o.weight_decay)
        if o.ema:
            copies.add(AVERAGE)
        self.refused = 0

    def step(self, iteration: int) -> Metrics:
        """Step along the accumulated gradient and clear it; a non-finite one is refused, three in a row are Diverged."""
        norm = nn.utils.clip_grad_norm_(self.parameters, self.options.max_grad_norm)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        finite = bool(norm.isfinite())
        if finite:
            share = rate(iteration, self.iterations, warmup=self.options.warmup, decay=self.options.decay)
            self.adamw.param_groups[0]["lr"] = self.options.lr * share
            self.adamw.step()
            if self.options.ema:
                self.copies.follow(AVERAGE, self.options.ema)
        self.adamw.zero_grad(set_to_none=True)
        self.refused = 0 if finite else self.refused + 1
        if self.refused == REFUSED_LIMIT:
            raise Diverged(f"the gradient was not finite {REFUSED_LIMIT} times in a row; lower optimizer.lr or look at the rewards")
        return {"grad/norm": norm.item() if finite else None, "grad/refused": self.refused}

    def state(self) -> dict[str, Tensor]:
        """Return the moments and counters of each parameter, as `<parameter>/<what>`."""
        states = {name: self.adamw.state.get(p, {}) for name, p in self.named.items()}
        found = {f"{name}/{what}": torch.as_tensor(value) for name, state in states.items() for what, value in state.items()}
        return {key: value.clone() if "/qmap" in key else value for key, value in found.items()}  # bitsandbytes shares these tables

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state` returned."""
        for key, value in tensors.items():
            name, _, what = key.rpartition("/")
            counter = not value.ndim and not value.is_floating_point()  # of bitsandbytes, which keeps a plain integer
            self.adamw.state[self.named[name]][what] = int(value) if counter else value


def _adamw(bits: int) -> Any:
    """Return the class of optimizer for moments of 32 or 8 bits."""
    if bits == 32:
        return lambda parameters, **options: torch.optim.AdamW(parameters, fused=True, **options)
    from bitsandbytes.optim.adamw import AdamW8bit

    return AdamW8bit
