"""DiffusionNFT and AWM by their definitions, sample by sample and pair by pair: policies are mixed as network outputs."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch

from vgrpo_core import Process, Prompt
from vgrpo_core.copies import Copies
from vgrpo_core.pairs import draw
from vgrpo_core.rollout import Rollout

GROUP, SEED, ITERATION = 3, 11, 4
ADVANTAGES = (1.2, -0.7, -0.5, 0.4, -1.3, 0.9)
ALPHAS = np.linspace(0.999, 0.01, 1000)
PREDICTIONS = ("flow", "epsilon", "v")


def process(prediction):
    return Process(prediction, None if prediction == "flow" else torch.tensor(ALPHAS))


def levels(prediction, t):
    """Alpha and sigma of a float time."""
    if prediction == "flow":
        return 1 - t, t
    square = math.exp(np.interp(1000 * t, np.arange(-1, 1000), np.log([1, *ALPHAS])))
    return math.sqrt(square), math.sqrt(1 - square)


def moved(module, by, seed):
    """A copy of a network whose trained weights are others."""
    other, source = copy.deepcopy(module), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (p for p in other.parameters() if p.requires_grad):
            parameter += by * torch.randn(parameter.shape, generator=source)
    return other


def rollout(policy, advantages=ADVANTAGES, valid=None, **networks):
    """Two prompts with three samples each, and the copies that `networks` are."""
    latents = torch.randn(len(advantages), 3, 1, 2, generator=torch.Generator().manual_seed(5))
    prompts = tuple(Prompt(f"prompt {row // GROUP}") for row in range(len(advantages)))
    copies = Copies(policy.trainable())
    for name, network in networks.items():
        copies.kept[name] = {key: dict(network.named_parameters())[key].detach().clone() for key in copies.parameters}
    known = torch.tensor(valid or [True] * len(advantages))
    return Rollout(SEED, ITERATION, GROUP, prompts, latents, torch.tensor(advantages), known, copies=copies)


class Seen:
    """One sample at one of its pairs."""

    def __init__(self, policy, rollout, row, t, noise):
        self.prediction, self.t, self.which = policy.process.prediction, t, row // GROUP
        self.alpha, self.sigma = levels(self.prediction, float(t))
        self.x, self.noise = rollout.latents[row].flatten(), noise.flatten()
        self.z = self.alpha * self.x + self.sigma * self.noise

    def output(self, module):
        return module(self.z[None], self.t[None], torch.tensor([self.which]))[0]

    def data(self, output):
        if self.prediction == "epsilon":
            return (self.z - self.sigma * output) / self.alpha
        return (self.z if self.prediction == "flow" else self.alpha * self.z) - self.sigma * output

    def velocity(self, output):
        return self.alpha * output - self.sigma * self.data(output) if self.prediction == "epsilon" else output

    @property
    def target(self):
        return self.noise - self.x if self.prediction == "flow" else self.alpha * self.noise - self.sigma * self.x

    def matching(self, output):
        """The squared error of the predicted data over its mean absolute error."""
        error = self.data(output) - self.x
        return error.square().mean() / error.abs().mean().detach()


def seen(policy, rollout, row, pairs, grid, span=(0.02, 1.0)):
    """The sample `row` at each of its pairs."""
    key = (SEED, ITERATION, row // GROUP, row % GROUP)
    made = draw([key], pairs, shape=(3, 1, 2), times=policy.axis(), stratified=True, span=span)
    times = policy.schedule(pairs).times[:-1] if grid else made.times[0]
    return [Seen(policy, rollout, row, t, noise) for t, noise in zip(times, made.noise[0], strict=True)]


def valid(rollout):
    return rollout.valid.nonzero().flatten().tolist()


def nft(policy, rollout, options, old, reference):
    total, c, b = 0, options.advantage_clip, options.beta
    for row in valid(rollout):
        r = min(max(0.5 + min(max(rollout.advantages[row].item(), -c), c) / (2 * c), 0), 1)
        for pair in seen(policy, rollout, row, options.pairs, options.grid):
            v, v_old, v_ref = pair.output(policy.module), pair.output(old).detach(), pair.output(reference).detach()
            plus, minus = (1 - b) * v_old + b * v, (1 + b) * v_old - b * v
            term = c * (r * pair.matching(plus) / b + (1 - r) * pair.matching(minus) / b)
            term = term + options.kl * (pair.velocity(v) - pair.velocity(v_ref)).square().mean()
            total = total + term / options.pairs
    return total / len(valid(rollout))


def logp(pair, module, options):
    error = (pair.velocity(pair.output(module)) - pair.target).square().mean()
    p = options.power
    weighted = {"1": error, "t": pair.t * error, "t2": pair.t**2 * error}
    return -weighted.get(options.weight, pair.t * ((error + 1e-10) ** p - 1e-10**p) / p)


def awm(policy, rollout, options, old, reference, ema):
    total, eps, c = 0, options.clip or math.inf, options.advantage_clip
    for row in valid(rollout):
        pairs = seen(policy, rollout, row, options.pairs, grid=False, span=options.span)
        differences = [logp(pair, policy.module, options) - logp(pair, old, options).detach() for pair in pairs]
        if options.ratio == "mean":
            differences = [sum(differences) / len(differences)]
        advantage = min(max(rollout.advantages[row].item(), -c), c) / c
        for difference in differences:
            ratio = difference.exp()
            total = total - torch.min(ratio * advantage, ratio.clamp(1 - eps, 1 + eps) * advantage) / len(differences)
        for pair in pairs:
            v = pair.velocity(pair.output(policy.module))
            for weight, module in ((options.kl, reference), (options.kl_ema, ema)):
                gap = v - pair.velocity(pair.output(module)).detach()
                total = total + weight * gap.square().mean() / len(pairs)
    return total / len(valid(rollout))


def gradient(policy, loss):
    found = torch.autograd.grad(loss, list(policy.trainable().values()))
    return torch.cat([part.flatten() for part in found])


def steps(policy, update, step=0, micro=99):
    """Loss and gradient of one step, in micro-batches."""
    policy.module.zero_grad()
    total = 0.0
    for rows in update.rows(step).split(micro):
        loss, _ = update.loss(rows, step)
        loss.backward()
        total += loss.item()
    return total, torch.cat([p.grad.flatten() for p in policy.trainable().values()])


def close(found, expected, tolerance=2e-5):
    found, expected = found.detach(), expected.detach()
    torch.testing.assert_close(found, expected, atol=tolerance * max(1.0, expected.abs().max().item()), rtol=tolerance)


def agrees(found, expected, policy, tolerance=2e-5):
    """Compare loss and gradient with those of a plain loss."""
    close(torch.tensor(found[0]), expected, tolerance)
    close(found[1], gradient(policy, expected), tolerance)
