"""AdamW with a warm-up, a decay and a clipped gradient; it refuses to step along anything that is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from . import checkpoint
from .errors import RunError
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
    """Hold the state that belongs to the trained parameters."""

    def __init__(self, recipe: Recipe, parameters: Mapping[str, nn.Parameter]) -> None:
        self.options, self.iterations, o = recipe.optimizer, recipe.run.iterations, recipe.optimizer
        self.names, self.parameters = list(parameters), list(parameters.values())
        self.adamw = torch.optim.AdamW(self.parameters, lr=o.lr, betas=o.betas, weight_decay=o.weight_decay, fused=True)
        self.refused = 0

    def step(self, iteration: int) -> Metrics:
        """Step along the accumulated gradient and clear it; a non-finite one is refused, three in a row are a RunError."""
        norm = nn.utils.clip_grad_norm_(self.parameters, self.options.max_grad_norm)
        finite = bool(norm.isfinite())
        if finite:
            share = rate(iteration, self.iterations, warmup=self.options.warmup, decay=self.options.decay)
            self.adamw.param_groups[0]["lr"] = self.options.lr * share
            self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        self.refused = 0 if finite else self.refused + 1
        if self.refused == REFUSED_LIMIT:
            raise RunError(f"the gradient was not finite {REFUSED_LIMIT} times in a row; lower optimizer.lr or look at the rewards")
        return {"grad/norm": norm.item() if finite else None, "grad/refused": self.refused}

    def state(self) -> dict[str, Tensor]:
        """Return the optimizer's tensors, by name."""
        return checkpoint.pack(self.adamw, self.names)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state` returned."""
        checkpoint.unpack(self.adamw, self.names, tensors)
