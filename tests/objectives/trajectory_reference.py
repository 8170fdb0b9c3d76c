"""Flow-GRPO's loss by its definition, sample by sample and step by step, with the densities of torch.distributions."""

from __future__ import annotations

import math

import torch
from torch.distributions import Normal

from vgrpo_core import Prompt
from vgrpo_core.copies import Copies
from vgrpo_core.ranks import Ranks
from vgrpo_core.rollout import Rollout, draws, explore

SEED, ITERATION, GROUP = 11, 4, 3
ADVANTAGES = (1.2, -0.7, -0.5, 0.4, -1.3, 0.9)
PROMPTS = [Prompt("prompt 0"), Prompt("prompt 1")]


def rollout(policy, sampler, advantages=ADVANTAGES, valid=None, copies=None, iteration=ITERATION, ranks=None):
    """Two prompts with three samples each, drawn by a stochastic sampler."""
    rows, ranks = draws(SEED, "noise", PROMPTS, GROUP, iteration), ranks or Ranks()
    found = explore(policy, sampler, rows.of(ranks.share(len(rows))))
    known = torch.tensor(valid or [True] * 6)
    copies = copies or Copies({})
    return Rollout(SEED, iteration, GROUP, rows.prompts, found.latents, torch.tensor(advantages), known, ranks, copies, found)


def sd(sampler, s, first):
    """Noise per root of time at s."""
    if sampler.name == "dance_sde":
        return sampler.noise
    return sampler.noise * math.sqrt(s / (1 - (first if s == 1 else s)))


def gaussian(policy, module, sampler, rollout, row, k):
    """The mean and deviation of a kept step of a sample under a network, and its noise per root of time."""
    first = policy.schedule(sampler.steps).times[1].item()
    s, after = rollout.trajectory.times[k].tolist()
    z, deviation, dt = rollout.trajectory.before[row, k].flatten(), sd(sampler, s, first), after - s
    v = module(z[None], torch.tensor([s]), torch.tensor([row // GROUP]))[0]
    mean = z * (1 + deviation**2 * dt / (2 * s)) + v * (1 + deviation**2 * (1 - s) / (2 * s)) * dt
    return mean, deviation * math.sqrt(-dt), deviation


def log_density(policy, module, sampler, rollout, row, k):
    mean, std, _ = gaussian(policy, module, sampler, rollout, row, k)
    return Normal(mean, std).log_prob(rollout.trajectory.after[row, k].flatten()).mean()


def ratio(policy, sampler, rollout, old, row, k):
    new, before = (log_density(policy, module, sampler, rollout, row, k) for module in (policy.module, old))
    return torch.exp(new - before.detach())


def divergence(policy, sampler, rollout, reference, row, k):
    mean, _, deviation = gaussian(policy, policy.module, sampler, rollout, row, k)
    other, _, _ = gaussian(policy, reference, sampler, rollout, row, k)
    return ((mean - other.detach()) ** 2 / (2 * deviation**2)).mean()


def objective(policy, sampler, rollout, options, steps, old, reference):
    """The loss by its definition: means over the valid samples and the steps learnt from."""
    total, known = 0, rollout.valid.nonzero().flatten().tolist()
    for row in known:
        advantage = min(max(rollout.advantages[row].item(), -options.advantage_clip), options.advantage_clip)
        for k in steps:
            rho = ratio(policy, sampler, rollout, old, row, k)
            total = total - torch.min(rho * advantage, rho.clamp(1 - options.clip, 1 + options.clip) * advantage) / len(steps)
            total = total + options.kl * divergence(policy, sampler, rollout, reference, row, k) / len(steps)
    return total / len(known)
