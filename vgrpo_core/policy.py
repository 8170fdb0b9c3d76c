"""What a backbone becomes once loaded: the thing that is trained."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from .process import STEPS, Process, Schedule


class Policy(ABC):
    """Draw noise, predict, decode; hold the trainable parameters.

    Latents stay in the model's own (packed) layout [B, *D] everywhere but in `decode`.
    """

    process: Process
    module: nn.Module
    evaluations: int = 0
    """Rows that `predict` has sent through the network so far."""
    backwards: int = 0
    """Those of them that keep what a gradient needs."""

    def predict(self, z: Tensor, t: Tensor, prompts: Sequence[str]) -> Tensor:
        """Return the network's output for latents [B, *D] at times `t` (scalar or [B]) in float32, and count it."""
        self.evaluations += len(z)
        self.backwards += len(z) if torch.is_grad_enabled() else 0
        return self.output(z, t, prompts).float()

    @abstractmethod
    def output(self, z: Tensor, t: Tensor, prompts: Sequence[str]) -> Tensor:
        """Evaluate the network: what the model's own scheduler would be handed; gradients flow."""

    @abstractmethod
    def noise(self, prompts: Sequence[str], generators: Sequence[torch.Generator]) -> Tensor:
        """Draw initial latents [B, *D] with one generator a row."""

    @abstractmethod
    def decode(self, latents: Tensor) -> Tensor:
        """Turn finished latents into images: float32 RGB [B, 3, H, W] in [0, 1]."""

    @abstractmethod
    def schedule(self, steps: int) -> Schedule:
        """Return the model's own times for a number of steps."""

    def axis(self) -> Tensor:
        """Return the times that positions of the schedule are warped by, from noise to data: the schedule at its finest."""
        if self.process.alphas_cumprod is not None:  # diffusion spaces its timesteps evenly
            return torch.arange(STEPS - 1, -2, -1) / STEPS
        return self.schedule(STEPS).times.cpu()

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Write the trained weights in the model's own format, for others to load."""

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, act as the recipe's evaluation asks, such as with guidance; by default nothing changes."""
        yield

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by name."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def state(self) -> dict[str, Tensor]:
        """Return the trained weights, by name."""
        return {name: p.detach() for name, p in self.trainable().items()}

    @torch.no_grad()
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Put weights that `state` returned back in place; other names or shapes are a ValueError."""
        parameters = self.trainable()
        wrong = sorted(state.keys() ^ parameters.keys()) or sorted(n for n, p in parameters.items() if p.shape != state[n].shape)
        if wrong:
            raise ValueError(f"the weights do not fit this model; first differences: {', '.join(wrong[:3])}")
        for name, parameter in parameters.items():
            parameter.copy_(state[name])
