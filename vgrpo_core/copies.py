"""Copies of the trained weights that a run keeps beside them: their average, the policy that draws, the one that it began with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

AVERAGE = "average"  # the copy of the weights that is evaluated and exported


class Copies:
    """Hold copies of some parameters by name; a copy begins as what the parameters are when it is added."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = dict(parameters)
        self.kept = dict[str, dict[str, Tensor]]()

    def add(self, copy: str) -> None:
        """Copy the weights as they are now."""
        self.kept[copy] = {name: p.detach().clone() for name, p in self.parameters.items()}

    @torch.no_grad()
    def follow(self, copy: str, decay: float) -> None:
        """Move a copy towards the weights: copy <- decay copy + (1 - decay) weights."""
        for name, value in self.kept[copy].items():
            value.lerp_(self.parameters[name].detach(), 1 - decay)

    @contextmanager
    def inside(self, copy: str | None) -> Iterator[None]:
        """Inside, the model has the weights of a copy, if there is one of that name; afterwards its own again, to the last bit.

        No gradient may be pending: it would be that of other weights.
        """
        self._swap(copy)
        try:
            yield
        finally:
            self._swap(copy)

    @torch.no_grad()
    def _swap(self, copy: str | None) -> None:
        for name, value in self.kept.get(copy or "", {}).items():
            own = self.parameters[name].detach().clone()
            self.parameters[name].copy_(value)
            value.copy_(own)

    def state(self) -> dict[str, Tensor]:
        """Return all copies, as `<parameter>/<copy>`."""
        return {f"{name}/{copy}": value for copy, tensors in self.kept.items() for name, value in tensors.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `state` returned; a copy that a checkpoint has not starts from the weights."""
        for copy, kept in self.kept.items():
            for name, value in kept.items():
                value.copy_(tensors.get(f"{name}/{copy}", self.parameters[name].detach()))
