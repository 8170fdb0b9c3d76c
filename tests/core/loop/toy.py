"""Tiny plugins of every kind for whole runs in milliseconds; recipes name this file."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import nn

from vgrpo_core import Backbone, Policy, Process, Prompt, Prompts, Reward, Sampler, Schedule, StochasticSampler, Trajectory
from vgrpo_core.vgrpo import VGRPO


class Net(nn.Module):
    """Two layers on latents, time and an embedding of each prompt; `frozen` takes part and is not trained."""

    def __init__(self, prompts: int, size: int) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(prompts, 4)
        self.inner = nn.Linear(size + 5, 12)
        self.outer = nn.Linear(12, size)
        self.frozen = nn.Parameter(torch.randn(size), requires_grad=False)

    def forward(self, z: torch.Tensor, t: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        inputs = torch.cat([z, t[:, None], self.embeddings(which)], 1)
        return self.outer(torch.tanh(self.inner(inputs))) + self.frozen


class ToyPolicy(Policy):
    def __init__(self, prompts: int = 8, shape: tuple[int, ...] = (3, 1, 2), process: Process | None = None) -> None:
        self.shape, self.process = shape, process or Process("flow")
        self.module = Net(prompts, torch.Size(shape).numel())
        self.seen: list[torch.Tensor] = []

    def output(self, z, t, prompts):
        t = t.expand(len(z))
        self.seen.append(t)
        which = torch.tensor([int(text.removeprefix("prompt ")) for text in prompts])
        return self.module(z.flatten(1), t, which).view_as(z)

    def noise(self, prompts, generators):
        return torch.stack([torch.randn(self.shape, generator=generator) for generator in generators])

    def decode(self, latents):
        return latents.sigmoid().view(-1, 3, 1, 2)

    def schedule(self, steps):
        sigma = torch.linspace(1, 0, steps + 1)
        return Schedule(3 * sigma / (1 + 2 * sigma), self.process)

    def export(self, folder):
        folder.mkdir()
        torch.save(self.state(), folder / "weights.pt")


class ToyBackbone(Backbone):
    name = "toy"

    def load(self, device):
        return ToyPolicy()

    def describe(self):
        return "a toy"


class ToySampler(Sampler):
    name = "toy"

    def sample(self, predict, noise, schedule):
        z = noise
        for t, after in zip(schedule.times[:-1], schedule.times[1:], strict=True):
            z = z + (after - t) * predict(z, t)
        return z


class ToyWalk(StochasticSampler):
    """Euler's method, with noise after each of the first steps; thrifty, it reuses an output in every second iteration."""

    name = "walk"
    noisy: int = 2
    deviation: float = 0.5
    thrifty: bool = False

    @property
    def noisy_steps(self):
        return self.noisy

    @property
    def rollout_evaluations(self):
        return self.steps - self.thrifty / 2

    def sample(self, predict, noise, schedule):
        return ToySampler(steps=self.steps).sample(predict, noise, schedule)

    def explore(self, predict, noise, schedule, draw, iteration):
        spans, z, before, after, means = list(pairwise(schedule.times)), noise, [], [], []
        for step, (t, end) in enumerate(spans):
            if not (self.thrifty and iteration % 2 == 0 and step == self.steps - 1):
                output = predict(z, t)
            mean = z + (end - t) * output
            if step < self.noisy:
                before, means, after = [*before, z], [*means, mean], [*after, mean + self.deviation * draw(step)]
            z = after[step] if step < self.noisy else mean
        kept = torch.tensor(spans[: self.noisy])

        def transition(output, z, k):
            return z + (kept[k, 1] - kept[k, 0]) * output

        parts = (torch.stack(each, 1) for each in (before, after, means))
        return Trajectory(z, *parts, torch.full((self.noisy,), self.deviation), kept, transition)


class ToyBehind(VGRPO):
    """V-GRPO whose images are drawn by a copy that follows slowly, and that keeps the weights it began with."""

    name = "behind"
    behaviour = "old"
    decays: tuple[float, ...] = (0.5,)

    def copies(self, iteration):
        return {"old": self.decays[(iteration - 1) % len(self.decays)], "first": 1.0}


class ToyPrompts(Prompts):
    name = "toy"
    count: int = 5
    first: int = 0

    def load(self):
        return [Prompt(f"prompt {index}") for index in range(self.first, self.first + self.count)]


class ToyReward(Reward):
    """Mean red; with `kind` something that goes wrong, from call `start` on."""

    name = "toy"
    kind: Literal["red", "constant", "fail", "gaps", "infinite", "blind"] = "red"
    start: int = 1
    size: int = 224

    def load(self, device):
        calls = 0

        def score(samples):
            nonlocal calls
            calls += 1
            red = samples.images[:, 0].mean((1, 2))
            if calls < self.start or self.kind == "red":
                return red
            if self.kind == "fail":
                raise ConnectionError(f"no answer to call {calls}")
            if self.kind == "gaps":  # what it can't judge depends on the image alone, not on its place in a batch
                return red.where(samples.images[:, 1].mean((1, 2)) > 0.5, torch.nan)
            return torch.full_like(red, {"constant": 0.5, "infinite": torch.inf, "blind": torch.nan}[self.kind])

        return score
