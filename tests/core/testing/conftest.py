"""A good plugin of each kind, in a module that other interpreters can import too."""

from __future__ import annotations

import importlib
import sys
import textwrap

import pytest

GOOD = '''
from vgrpo_core import Backbone, Objective, Reward, Sampler, StochasticSampler, Trajectory


class Bright(Reward):
    """Mean brightness."""

    name = "bright"

    def load(self, device):
        return lambda samples: samples.images.mean(dim=(1, 2, 3))


class Line(Sampler):
    """Euler's method on flows and diffusion."""

    name = "line"

    def sample(self, predict, noise, schedule):
        z, times, process = noise, schedule.times, schedule.process
        alpha, sigma = process.coefficients(times)
        for i, t in enumerate(times[:-1]):
            z = self.step(process, predict(z, t), z, t, alpha[i + 1], sigma[i + 1])
        return z

    def step(self, process, output, z, t, alpha, sigma):
        return alpha * process.data_from(output, z, t) + sigma * process.noise_from(output, z, t)


class Jitter(StochasticSampler):
    """Line, with noise after each of the first two steps."""

    name = "jitter"

    @property
    def noisy_steps(self):
        return 2

    def sample(self, predict, noise, schedule):
        return Line(steps=self.steps).sample(predict, noise, schedule)

    def explore(self, predict, noise, schedule, draw, iteration):
        from good_update import jittered

        return Trajectory(*jittered(self, predict, noise, schedule, draw))

    def step(self, schedule, output, z, k):
        alpha, sigma = schedule.process.coefficients(schedule.times)
        return Line.step(self, schedule.process, output, z, schedule.times[k], alpha[k + 1], sigma[k + 1])


class Pull(Objective):
    """Pull the network towards the samples that beat their group."""

    name = "pull"

    @property
    def evaluations(self):
        return self.steps

    @property
    def rows_per_sample(self):
        return 1

    def start(self, policy, rollout, micro):
        from good_update import PullUpdate

        return PullUpdate(policy, rollout)


class Follow(Pull):
    """Make the steps likelier that led to samples that beat their group; a copy draws them."""

    name = "follow"
    behaviour = "old"

    @property
    def noisy_steps(self):
        return 2

    @property
    def evaluations(self):
        return 2 * self.steps

    @property
    def rows_per_sample(self):
        return 2

    def copies(self, iteration):
        return {"old": min(iteration / 10, 0.9)}

    def start(self, policy, rollout, micro):
        from good_update import FollowUpdate

        return FollowUpdate(policy, rollout)


class Grey(Backbone):
    """Grey pictures of 4 x 4."""

    name = "grey"

    def load(self, device):
        from good_policy import GreyPolicy

        return GreyPolicy()
'''

POLICY = """
import torch
from torch import nn
from vgrpo_core import Policy, Process, Schedule


class GreyPolicy(Policy):
    process = Process("flow")

    def __init__(self):
        self.module = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def noise(self, prompts, generators):
        return torch.stack([torch.randn(4, 4, generator=generator) for generator in generators])

    def output(self, z, t, prompts):
        return self.module(torch.stack([z, t.view(-1, 1, 1).expand_as(z)], dim=-1)).squeeze(-1)

    def decode(self, latents):
        return latents.sigmoid().unsqueeze(1).expand(-1, 3, -1, -1)

    def schedule(self, steps):
        return Schedule(torch.linspace(1, 0, steps + 1), self.process)

    def export(self, folder):
        folder.mkdir()
        (folder / "weights.txt").write_text(str({name: p.tolist() for name, p in self.module.named_parameters()}))
"""


UPDATE = """
import torch
from vgrpo_core.keys import generator


class PullUpdate:
    statistics = ("error",)

    def __init__(self, policy, rollout):
        self.policy, self.rollout = policy, rollout

    def rows(self, step):
        return (self.rollout.valid & (self.rollout.advantages != 0)).nonzero().flatten()

    def noise(self, row, step):
        seed, *place = self.rollout.key(row)
        return torch.randn(self.rollout.latents.shape[1:], generator=generator(seed, "pairs", *place, step))

    def errors(self, rows, step):
        latents, process = self.rollout.latents[rows - self.rollout.own.start], self.policy.process
        t = torch.full((len(rows),), 0.5)
        z = process.mix(latents, torch.stack([self.noise(row, step) for row in rows.tolist()]), t)
        data = process.data_from(self.policy.predict(z, t, [self.rollout.prompts[row].text for row in rows.tolist()]), z, t)
        return (data - latents).square().flatten(1).mean(1)

    def loss(self, rows, step):
        errors = self.errors(rows, step)
        return (self.rollout.advantages[rows] * errors).sum() / self.rollout.valid.sum(), {"error": errors.detach()}


class FollowUpdate(PullUpdate):
    def errors(self, rows, step):
        kept, own = self.rollout.trajectory, rows - self.rollout.own.start
        texts, errors = [self.rollout.prompts[row].text for row in rows.tolist()], 0
        for k in range(2):
            z = kept.before[own, k]
            mean = kept.transition(self.policy.predict(z, kept.times[k, 0], texts), z, k)
            errors = errors + ((kept.after[own, k] - mean) / kept.std[k]).square().flatten(1).mean(1) / 2
        return errors


def jittered(sampler, predict, noise, schedule, draw):
    z, before, after, means, std = noise, [], [], [], torch.full((2,), 0.2)
    for k, t in enumerate(schedule.times[:-1]):
        mean = sampler.step(schedule, predict(z, t), z, k)
        following = mean + std[k] * draw(k) if k < 2 else mean
        if k < 2:
            before, after, means = [*before, z], [*after, following], [*means, mean]
        z = following
    parts = (torch.stack(each, 1) for each in (before, after, means))
    times = torch.stack([schedule.times[:2], schedule.times[1:3]], 1)
    return z, *parts, std, times, lambda output, z, k: sampler.step(schedule, output, z, k)
"""


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """Return a function that writes a module, importable in this process and in others, and returns its name."""
    folder = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))

        def write(name, code):
            (folder / f"{name}.py").write_text(textwrap.dedent(code))
            importlib.invalidate_caches()
            return name

        yield write
    for name in [path.stem for path in folder.glob("*.py")]:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def good(module):
    """Return a module with a good plugin of each kind."""
    module("good_policy", POLICY)
    module("good_update", UPDATE)
    return importlib.import_module(module("good_plugins", GOOD))


@pytest.fixture(scope="module")
def heavy(module):
    """Return the good plugins in a module that imports numpy."""
    return importlib.import_module(module("heavy_plugins", "import numpy\n" + GOOD))


@pytest.fixture(scope="session")
def fails():
    """Return a function that sees a check fail with one sentence."""

    def fails(check, plugin, sentence, **options):
        with pytest.raises(AssertionError, match=sentence) as raised:
            check(plugin, **options)
        assert "\n" not in str(raised.value)

    return fails
