"""Finished samples, noised afresh and predicted by the weights and by copies of them.

R rows (samples), N pairs of time and noise, *D one latent. Everything here is float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vgrpo_core import Policy
from vgrpo_core.pairs import draw
from vgrpo_core.rollout import Rollout


class Noised(NamedTuple):
    """Some rows of a rollout at their pairs."""

    rows: list[int]
    latents: Tensor
    """[R, *D]: the finished samples."""
    times: Tensor
    """[R, N]."""
    z: Tensor
    """[R, N, *D]: the samples, noised."""
    sigma: Tensor
    """[R, N, 1]: how much noise is in them."""


class ForwardProcess:
    """Noise the samples of a rollout, each with pairs of its own: a pure function of (run seed, iteration, prompt, sample).

    With a `grid` [N] the times are these for all samples, and the noise alone is drawn; otherwise a time is drawn in each of N
    equal segments of `span` of the schedule. `steps` is how many gradient steps there are.
    """

    def __init__(
        self, policy: Policy, rollout: Rollout, pairs: int, span: tuple[float, float], steps: int, grid: Tensor | None = None
    ) -> None:
        self.policy, self.rollout, self.count, self.span, self.steps, self.grid = policy, rollout, pairs, span, steps, grid
        self.axis = policy.axis()
        self.kept: dict[tuple[str, int], Tensor] = {}

    def noise(self, rows: Tensor) -> Noised:
        """Noise some rows at all of their pairs."""
        latents = self.rollout.latents[rows - self.rollout.own.start]
        keys = [self.rollout.key(row) for row in rows.tolist()]
        made = draw(keys, self.count, shape=latents.shape[1:], times=self.axis, stratified=True, span=self.span)
        times = (made.times if self.grid is None else self.grid.float().expand_as(made.times)).to(latents.device)
        repeated, noise = latents.repeat_interleave(self.count, 0), made.noise.to(latents.device)
        z = self.policy.process.mix(repeated, noise.flatten(0, 1), times.flatten()).view_as(noise)
        return Noised(rows.tolist(), latents, times, z, self.policy.process.coefficients(times)[1].unsqueeze(-1))

    def predict(self, noised: Noised) -> Tensor:
        """Predict the data with the weights: [R, N, *D]."""
        z, times = noised.z.flatten(0, 1), noised.times.flatten()
        texts = [self.rollout.prompts[row].text for row in noised.rows for _ in range(self.count)]
        return self.policy.process.data_from(self.policy.predict(z, times, texts), z, times).view_as(noised.z)

    @torch.no_grad()
    def predict_with(self, copy: str, noised: Noised, step: int) -> Tensor:
        """Predict the data with a copy of the weights, before the forward pass that takes the gradient: [R, N, *D].

        Copies stay as they are through a rollout: what step 0 found serves the later ones.
        """
        if step == 0:
            with self.rollout.copies.inside(copy):
                data = self.predict(noised)
            return self.keep(copy, noised, data)
        return self.recall(copy, noised, torch.zeros_like(noised.z))

    def keep(self, what: str, noised: Noised, values: Tensor) -> Tensor:
        """Keep one value a row for later steps, where there are any, and return them."""
        if self.steps > 1:
            self.kept |= {(what, row): value for row, value in zip(noised.rows, values, strict=True)}
        return values

    def recall(self, what: str, noised: Noised, otherwise: Tensor) -> Tensor:
        """Return what was kept; a row that only keeps sharded ranks in step has none and takes that of `otherwise`."""
        found = [self.kept.get((what, row), other) for row, other in zip(noised.rows, otherwise, strict=True)]
        return torch.stack(found)


def velocity_gap(data: Tensor, other: Tensor, noised: Noised) -> Tensor:
    """Return the mean square over D of the difference of two velocities: [R, N].

    The velocity is noise - data of a flow and alpha noise - sigma data of a variance-preserving diffusion. As z stays, either
    moves by -1 / sigma of what the predicted data move by.
    """
    return ((data - other).flatten(2) / noised.sigma).square().mean(2)
