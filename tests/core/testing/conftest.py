"""A good plugin of each kind, in a module that other interpreters can import too."""

from __future__ import annotations

import importlib
import sys
import textwrap

import pytest

GOOD = '''
from vgrpo_core import Backbone, Reward, Sampler


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
