"""A good sampler passes its check, and one that breaks a single promise fails with the sentence about it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vgrpo_core import PluginError, Schedule
from vgrpo_core.testing import check_sampler
from vgrpo_core.testing.sampler import DEVIATION, MEAN, toys
from vgrpo_samplers import Heun


def test_a_good_sampler_passes_on_flows_and_diffusion(good):
    assert check_sampler(good.Line()) == []
    assert check_sampler(good.Line(steps=1)) == []


def only(kind, base):
    class Only(base):
        """Refuses a process."""

        def sample(self, predict, noise, schedule):
            if (schedule.process.alphas_cumprod is None) != (kind == "flow"):
                raise PluginError("it does not fit this model")
            return super().sample(predict, noise, schedule)

    Only.__module__ = base.__module__
    return Only()


def test_what_a_sampler_refuses_is_returned(good):
    assert check_sampler(only("flow", good.Line)) == ["diffusion/epsilon", "diffusion/v", "diffusion/sample"]
    assert check_sampler(only("diffusion", good.Line)) == ["flow/flow", "flow/sample"]


def test_a_sampler_that_refuses_everything_fails(good, fails):
    fails(check_sampler, only("flow", type(only("diffusion", good.Line))), 'sampler "line" refuses every process')


def slope(sampler, process, output, z, t, alpha, sigma):
    """Take every output for a velocity, and sigma for the time."""
    return z + (sigma - process.coefficients(t)[1]) * output


def test_a_sampler_that_takes_every_output_for_a_velocity_fails_where_it_is_none(good, monkeypatch, fails):
    monkeypatch.setattr(good.Line, "step", slope)
    fails(check_sampler, good.Line(), "on flow/sample: .*it does not converge")


def test_a_sampler_for_flows_fails_on_diffusion_that_it_does_not_refuse(good, monkeypatch, fails):
    right = good.Line.step
    pick = lambda self, process, *rest: (slope if process.alphas_cumprod is not None else right)(self, process, *rest)  # noqa: E731
    monkeypatch.setattr(good.Line, "step", pick)
    fails(check_sampler, good.Line(), "on diffusion/epsilon: .*it does not converge")


def again(sampler, predict, noise, schedule):
    predict(noise, schedule.times[0])
    return type(sampler).__base__.sample(sampler, predict, noise, schedule)


def told(change):
    """Return a sampler that tells the network other times."""
    return lambda s, predict, *rest: type(s).__base__.sample(s, lambda z, t: predict(z, change(t)), *rest)


def bent(change):
    """Return a sampler whose latents are changed at the end."""
    return lambda s, *rest: change(type(s).__base__.sample(s, *rest))


def in_place(sampler, predict, noise, schedule):
    return noise.copy_(type(sampler).__base__.sample(sampler, predict, noise, schedule))


def remembering():
    seen = []

    def sample(sampler, predict, noise, schedule):
        seen.append(0)
        return type(sampler).__base__.sample(sampler, predict, noise, schedule) + 0.001 * len(seen)

    return sample


SAMPLERS = {
    "shape": (bent(lambda z: z[..., :1]), r"returns latents \[3, 4, 1\] for noise \[3, 4, 2\]"),
    "not finite": (bent(lambda z: z / 0), "latents that are not finite"),
    "noise in place": (in_place, "changes the noise"),
    "one evaluation too many": (again, "evaluates the network 17 times a row, and `evaluations` is 16"),
    "coarse times": (told(lambda t: t.bfloat16()), "rounds the times"),
    "whole timesteps": (told(lambda t: (1000 * t).long()), "rounds the times"),
    "times beyond": (told(lambda t: t + 0.1), r"visits times from 1\.1 to .*and the schedule goes from 1 to 0"),
    "memory": (remembering(), "a second call with the same noise ends elsewhere"),
    "random": (bent(lambda z: z + 0.001 * torch.randn_like(z)), "a second call with the same noise ends elsewhere"),
    "rows mixed": (bent(lambda z: z - 0.01 * z.mean(0)), "a row ends elsewhere without the rows beside it"),
    "half-way": (bent(lambda z: 0.5 * z), "32 steps make an error of .* it does not converge"),
}


@pytest.mark.parametrize(("sample", "sentence"), SAMPLERS.values(), ids=SAMPLERS)
def test_a_sampler_that_breaks_a_promise_fails_with_its_sentence(good, sample, sentence, fails):
    broken = type("Broken", (good.Line,), {"__doc__": "Broken in one way.", "sample": sample, "__module__": __name__})
    fails(check_sampler, broken(), f'sampler "line" on .*{sentence}')


def test_a_sampler_from_a_heavy_module_fails(heavy, fails):
    fails(check_sampler, heavy.Line(), 'importing "heavy_plugins" imports numpy')


@pytest.mark.parametrize("toy", toys(), ids=lambda toy: toy.name)
def test_the_toys_network_predicts_what_bayes_rule_gives(toy):
    z, t = torch.tensor([[-2.0, 0.3], [1.0, 2.5]], dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64)
    alpha, sigma = (float(level) for level in toy.process.coefficients(t))
    data = np.linspace(MEAN - 8 * DEVIATION, MEAN + 8 * DEVIATION, 20001)
    logs = -0.5 * ((data - MEAN) / DEVIATION) ** 2 - 0.5 * ((z.numpy()[..., None] - alpha * data) / sigma) ** 2
    weights = np.exp(logs - logs.max(-1, keepdims=True))
    x = (weights * data).sum(-1) / weights.sum(-1)
    e = (z.numpy() - alpha * x) / sigma
    expected = {"flow": e - x, "epsilon": e, "v": alpha * e - sigma * x, "sample": x}[toy.process.prediction]
    np.testing.assert_allclose(toy.predict(z, t).numpy(), expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(toy.predict(z, t.expand(2)).numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("toy", toys(), ids=lambda toy: toy.name)
def test_the_toys_exact_end_is_where_many_small_steps_lead(toy):
    noise = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    fine = toy.schedule(500)
    found = Heun(steps=500).sample(toy.predict, noise, Schedule(fine.times.double(), fine.process))
    torch.testing.assert_close(toy.exact(noise, fine.times.double()), found, rtol=0, atol=4e-3)
