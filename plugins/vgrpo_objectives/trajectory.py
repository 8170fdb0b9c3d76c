"""GRPO on single steps of a stochastic sampler: each step is an action whose likelihood is a Gaussian's.

R rows (samples), K noisy steps in the trajectory, L of them learnt from, *D one latent. Everything here is float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vgrpo_core import PluginError, Policy, Trajectory
from vgrpo_core.keys import generator
from vgrpo_core.rollout import Rollout
from vgrpo_core.surrogate import clipped

if TYPE_CHECKING:
    from .flow_grpo import FlowGRPO


def log_ratio(after: Tensor, mean: Tensor, old: Tensor, std: Tensor) -> Tensor:
    """Return log N(after; mean, std) - log N(after; old, std), averaged over D: [R, L]; 0 to the last bit where the means agree.

    `after`, `mean` and `old` are [R, L, *D], `std` is [L].
    """
    return ((after - old).square() - (after - mean).square()).flatten(2).mean(2) / (2 * std.square())


def divergence(mean: Tensor, reference: Tensor, rate: Tensor) -> Tensor:
    """Return (mean - reference)^2 / (2 rate^2), averaged over D: [R, L].

    `rate` [L] is the deviation per root of time: without sqrt(-dt), which makes it the KL divergence times the step's length.
    """
    return (mean - reference).square().flatten(2).mean(2) / (2 * rate.square())


class TrajectoryUpdate:
    """Take the gradient steps of Flow-GRPO, MixGRPO and DanceGRPO on one rollout.

    The old means were recorded with the trajectory: no forward is spent on them.
    """

    def __init__(self, options: FlowGRPO, policy: Policy, rollout: Rollout) -> None:
        self.options, self.policy, self.rollout = options, policy, rollout
        self.parts = options.steps if options.split else 1
        self.trajectory = _trajectory(options, rollout)
        self.chosen = _choice(rollout, len(self.trajectory.std), options.learn)
        self.std, times = self.trajectory.std[self.chosen], self.trajectory.times[self.chosen]
        self.rate, self.times = self.std / (times[:, 0] - times[:, 1]).sqrt(), times[:, 0]
        self.advantages = rollout.advantages.float().clamp(-options.advantage_clip, options.advantage_clip)
        self.statistics: Sequence[str] = (
            "ratio",
            *(["ratio/clip_fraction"] if options.clip is not None else []),
            *(["kl"] if options.kl else []),
        )

    def rows(self, step: int) -> Tensor:
        """Return the rows of all ranks that `step` uses: valid, with an advantage or a KL term, of its part where split."""
        use = self.rollout.valid & ((self.advantages != 0) | bool(self.options.kl))
        return (use & self.rollout.part(step, self.parts)).nonzero().flatten()

    def loss(self, rows: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what `rows` add to the mean loss, and their statistics, each a mean over steps."""
        options, (before, after, old) = self.options, self.recorded(rows)
        reference = self.reference(rows, before) if options.kl else None  # first: it swaps the weights that a graph would need
        mean = self.means(rows, before)
        ratio = log_ratio(after, mean, old, self.std).exp()
        loss = -clipped(ratio, self.advantages[rows, None].to(ratio.device), options.clip)
        found = {"ratio": ratio}
        if options.clip is not None:
            found["ratio/clip_fraction"] = ((ratio - 1).abs() > options.clip).float()
        if reference is not None:
            found["kl"] = divergence(mean, reference, self.rate)
            loss = loss + options.kl * found["kl"]
        count = int((self.rollout.valid & self.rollout.part(step, self.parts)).sum())
        return loss.mean(1).sum() / count, {name: value.detach().mean(1) for name, value in found.items()}

    def recorded(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return latents before and after the chosen steps, and the means at the time: [R, L, *D] each."""
        index, kept = rows - self.rollout.own.start, self.trajectory
        before, after, mean = (part[index][:, self.chosen] for part in (kept.before, kept.after, kept.mean))
        return before, after, mean

    def means(self, rows: Tensor, before: Tensor) -> Tensor:
        """Evaluate the network at the latents before the chosen steps and return the steps' means: [R, L, *D]."""
        texts = [self.rollout.prompts[row].text for row in rows.tolist() for _ in self.chosen]
        output = self.policy.predict(before.flatten(0, 1), self.times.repeat(len(rows)), texts).view_as(before)
        transition = self.trajectory.transition
        return torch.stack([transition(output[:, i], before[:, i], k) for i, k in enumerate(self.chosen)], 1)

    @torch.no_grad()
    def reference(self, rows: Tensor, before: Tensor) -> Tensor:
        """Return the means under the weights that training began with."""
        with self.rollout.copies.inside("reference"):
            return self.means(rows, before)


def _trajectory(options: FlowGRPO, rollout: Rollout) -> Trajectory:
    kept = 0 if rollout.trajectory is None else len(rollout.trajectory.std)
    if rollout.trajectory is None or kept < options.learn:
        what = f'objective "{options.name}" learns from {options.learn} steps that draw noise, and the sampler has kept {kept}'
        raise PluginError(what, fix="lower `learn`, or choose a sampler that draws noise in more steps")
    return rollout.trajectory


def _choice(rollout: Rollout, kept: int, learn: int) -> list[int]:
    """Choose the steps of an iteration, the same for all samples and on every rank."""
    source = generator(rollout.seed, "pairs", rollout.iteration)
    return sorted(torch.randperm(kept, generator=source)[:learn].tolist())
