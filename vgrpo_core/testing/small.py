"""A small model with rollouts of it, to hold objectives against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from ..copies import Copies
from ..plugin import Objective, Prompt, Sampler, StochasticSampler, Trajectory
from ..policy import Policy
from ..process import Schedule
from ..ranks import Ranks
from ..rollout import Draws, Rollout, draws, explore, sample
from .sampler import DEVIATION, MEAN, Toy

SHAPE = (3, 1, 2)
GROUP = 4
SEED, ITERATION = 3, 5


class Small(Policy):
    """The perfect network of a toy, and beside it a small one that is trained: its weights are the same every time."""

    def __init__(self, toy: Toy) -> None:
        self.toy, self.process = toy, toy.process
        size = torch.Size(SHAPE).numel()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            self.module = nn.Sequential(nn.Linear(size + 2, 8), nn.Tanh(), nn.Linear(8, size))

    @torch.no_grad()
    def move(self, seed: int) -> None:
        """Shift the weights a little, as a gradient step would."""
        source = torch.Generator().manual_seed(seed)
        for parameter in self.module.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=source))

    def output(self, z: Tensor, t: Tensor, prompts: Sequence[str]) -> Tensor:
        """Predict from latents, time and the length of each prompt."""
        about = torch.stack([t.expand(len(z)), torch.tensor([float(len(text)) for text in prompts])], 1)
        away: Tensor = self.module(torch.cat([z.flatten(1), about], 1))
        return self.toy.predict(z, t) + 0.1 * away.view_as(z)

    def noise(self, prompts: Sequence[str], generators: Sequence[torch.Generator]) -> Tensor:
        """Draw noise [B, 3, 1, 2]."""
        return torch.stack([torch.randn(SHAPE, generator=generator) for generator in generators])

    def decode(self, latents: Tensor) -> Tensor:
        """Show latents as images of 1 x 2 pixels."""
        return latents.sigmoid()

    def schedule(self, steps: int) -> Schedule:
        """Return the toy's own."""
        return self.toy.schedule(steps)

    def export(self, folder: Path) -> None:
        """Write the small network."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.state(), folder / "small.safetensors")


@dataclass(frozen=True)
class Scene:
    """A policy in the middle of a run, and the rollout that it has drawn for an objective."""

    policy: Small
    rollout: Rollout

    @classmethod
    def of(cls, objective: Objective, sampler: Sampler | None, toy: Toy) -> Scene:
        """Draw a group for each gradient step, two at least, with the weights or the copy that the objective asks for."""
        policy = Small(toy)
        copies = Copies(policy.trainable())
        for copy in objective.copies(0):
            copies.add(copy)
        policy.move(0)
        prompts = [Prompt("x" * (1 + place)) for place in range(max(2, objective.steps))]
        rows = draws(SEED, "noise", prompts, GROUP, ITERATION)
        with copies.inside(objective.behaviour):
            latents, trajectory = _drawn(policy, sampler, rows)
        values = torch.randn(len(prompts), GROUP, generator=torch.Generator().manual_seed(SEED))
        advantages = (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True)
        known = torch.ones(len(rows), dtype=torch.bool)
        rollout = Rollout(
            SEED, ITERATION, GROUP, rows.prompts, latents, advantages.flatten(), known, copies=copies, trajectory=trajectory
        )
        return cls(policy, rollout)

    def judged(self, *, flat: Sequence[int] = (), unknown: Sequence[int] = ()) -> Scene:
        """Return it with rows that have no advantage, and rows that no reward could judge."""
        advantages, valid = self.rollout.advantages.clone(), self.rollout.valid.clone()
        advantages[[*flat, *unknown]], valid[list(unknown)] = 0.0, False
        return replace(self, rollout=replace(self.rollout, advantages=advantages, valid=valid))

    def of_rank(self, rank: int, count: int) -> Scene:
        """Return what one of several ranks knows of it."""
        ranks = Ranks(rank, count)
        own = ranks.share(len(self.rollout.prompts))
        part, steps = slice(own.start, own.stop), self.rollout.trajectory
        if steps:
            rows = [each[part] for each in (steps.latents, steps.before, steps.after, steps.mean)]
            steps = steps._replace(latents=rows[0], before=rows[1], after=rows[2], mean=rows[3])
        return replace(self, rollout=replace(self.rollout, latents=self.rollout.latents[part], trajectory=steps, ranks=ranks))


def _drawn(policy: Small, sampler: Sampler | None, rows: Draws) -> tuple[Tensor, Trajectory | None]:
    """Draw with a sampler; without one, from the distribution of the toy."""
    if isinstance(sampler, StochasticSampler):
        found = explore(policy, sampler, rows)
        return found.latents, found
    if sampler:
        return sample(policy, sampler, rows), None
    return MEAN + DEVIATION * torch.randn(len(rows), *SHAPE, generator=torch.Generator().manual_seed(SEED)), None
