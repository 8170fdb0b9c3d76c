"""The surrogate and its objective by their definitions, sample by sample and pair by pair, in plain autograd."""

from __future__ import annotations

import copy
import math

import torch

from vgrpo_core import Prompt
from vgrpo_core.pairs import draw
from vgrpo_core.rollout import Rollout
from vgrpo_core.vgrpo import VGRPO

GROUP = 3
ADVANTAGES = (1.2, -0.7, -0.5, 0.4, -1.3, 0.9)
SEED, ITERATION = 11, 4


def rollout(advantages=ADVANTAGES, valid=None, order=None):
    """Two prompts with three samples each; `order` permutes the samples."""
    latents = torch.randn(len(advantages), 3, 1, 2, generator=torch.Generator().manual_seed(5))
    order = list(order or range(len(advantages)))
    prompts = tuple(Prompt(f"prompt {row // GROUP}") for row in range(len(advantages)))
    values = torch.tensor(advantages)[order]
    known = torch.tensor(valid or [True] * len(advantages))[order]
    return Rollout(SEED, ITERATION, GROUP, prompts, latents[order], values, known)


def surrogate(policy, rollout, row, options, module=None):
    """The definition, pair by pair: L and the predictions of the data that it is made of."""
    key = (SEED, ITERATION, row // GROUP) if options.shared else (SEED, ITERATION, row // GROUP, row % GROUP)
    times = policy.schedule(1000).times
    pairs = draw([key], options.pairs, shape=(3, 1, 2), times=times, stratified=options.stratified, span=options.span)
    module, o = module or policy.module, rollout.latents[row].flatten()
    losses, data = [], []
    for t, noise in zip(pairs.times[0], pairs.noise[0], strict=True):
        z = (1 - t) * o + t * noise.flatten()
        v = module(z[None], t[None], torch.tensor([row // GROUP]))[0]
        x = z - t * v
        error = {"x": x - o, "v": v - (noise.flatten() - o), "epsilon": z + (1 - t) * v - noise.flatten()}[options.loss]
        losses.append(error.square().mean() / (error.abs().mean().detach() if options.adaptive else 1))
        data.append(x)
    return torch.stack(losses).mean(), torch.stack(data)


def objective(policy, rollout, options, old, rows=range(6)):
    """-J by its definition: the clipped ratio and the KL term, a mean over `rows`."""
    total = 0
    for row in rows:
        (new, data), (before, before_data) = surrogate(policy, rollout, row, options), surrogate(policy, rollout, row, options, old)
        rho, advantage = torch.exp(before.detach() - new), rollout.advantages[row]
        eps = options.clip or math.inf
        total = total - torch.min(rho * advantage, rho.clamp(1 - eps, 1 + eps) * advantage)
        total = total + options.kl * (data - before_data.detach()).square().mean()
    return total / len(rows)


def gradient(policy, loss):
    found = torch.autograd.grad(loss, list(policy.trainable().values()))
    return torch.cat([part.flatten() for part in found])


def steps(policy, update, step=0, micro=99):
    """Loss and gradient of one step, in micro-batches; ratios in the order of the rows."""
    policy.module.zero_grad()
    total, ratios = 0.0, []
    for rows in update.rows(step).split(micro):
        loss, values = update.loss(rows, step)
        loss.backward()
        total += loss.item()
        ratios.append(values["ratio"])
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.trainable().values()]
    return total, torch.cat([part.flatten() for part in found]), torch.cat(ratios)


def start(policy, given=None, micro=99, **options):
    return VGRPO(**options).start(policy, given or rollout(), micro)


def move(policy, by=0.05):
    """Change the weights as a gradient step would; return those before."""
    before = copy.deepcopy(policy.module)
    with torch.no_grad():
        for index, parameter in enumerate(policy.trainable().values()):
            parameter += by * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
    return before


def close(found, expected, tolerance=1e-5):
    found, expected = found.detach(), expected.detach()
    torch.testing.assert_close(found, expected, atol=tolerance * max(1.0, expected.abs().max().item()), rtol=tolerance)


def spent(policy, given=None, **options):
    """Rows that an update sends through the network, in preparation and in all steps."""
    before = policy.evaluations
    update = start(policy, given, micro=2, **options)
    prepared = policy.evaluations - before
    for step in range(update.options.steps):
        for rows in update.rows(step).split(2) if len(update.rows(step)) else ():
            update.loss(rows, step)
    return prepared, policy.evaluations - before
