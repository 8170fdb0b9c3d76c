"""Whose error the surrogate is made of, data, velocity or noise: against the errors themselves, pair by pair, on every process."""

from __future__ import annotations

import pytest
import torch

from vgrpo_core import Process

ALPHAS = torch.linspace(0.999, 0.02, 1000)
PROCESSES = {
    "flow/flow": Process("flow"),
    "flow/sample": Process("sample"),
    "diffusion/epsilon": Process("epsilon", ALPHAS),
    "diffusion/v": Process("v", ALPHAS),
    "diffusion/sample": Process("sample", ALPHAS),
}


@pytest.fixture(params=PROCESSES, ids=str)
def policy(toy, request):
    """A toy of each process and prediction, with the same weights every time."""
    torch.manual_seed(0)
    return toy.ToyPolicy(process=PROCESSES[request.param])


def predicted(process, output, z, alpha, sigma):
    """Solve z = alpha x + sigma e with what the network says of them: x and e."""
    flow = process.alphas_cumprod is None
    match process.prediction:
        case "sample":
            return output, (z - alpha * output) / sigma
        case "epsilon":
            return (z - sigma * output) / alpha, output
        case _ if flow:  # output = e - x
            return (z - sigma * output) / (alpha + sigma), (z + alpha * output) / (alpha + sigma)
        case _:  # output = alpha e - sigma x
            return alpha * z - sigma * output, sigma * z + alpha * output


def error(policy, o, noise, t, text, loss):
    """One pair's error: what is predicted less what was mixed."""
    alpha, sigma = policy.process.coefficients(t)
    z = alpha * o + sigma * noise
    x, e = predicted(policy.process, policy.output(z[None], t, [text])[0], z, alpha, sigma)
    flow = policy.process.alphas_cumprod is None
    if loss == "v":
        return (e - x) - (noise - o) if flow else (alpha * e - sigma * x) - (alpha * noise - sigma * o)
    return e - noise if loss == "epsilon" else x - o


def surrogate(policy, rollout, update, row, loss, adaptive):
    """The definition, pair by pair."""
    times, noise = update.pairs(torch.tensor([row]))
    losses = []
    for t, eps in zip(times[0], noise[0], strict=True):
        found = error(policy, rollout.latents[row], eps, t, rollout.prompts[row].text, loss)
        losses.append(found.square().mean() / (found.abs().mean().detach() if adaptive else 1))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("loss", ["x", "v", "epsilon"])
def test_the_surrogate_and_its_gradient_are_those_of_the_error_that_counts(ref, policy, loss, adaptive):
    update, given = ref.start(policy, pairs=3, loss=loss, adaptive=adaptive), ref.rollout()
    rows = torch.tensor([0, 4, 2])
    found = update.measure(rows).surrogate
    expected = torch.stack([surrogate(policy, given, update, row, loss, adaptive) for row in rows.tolist()])
    ref.close(found, expected, 1e-4)
    weights = torch.tensor([1.0, -2.0, 0.5])
    ref.close(ref.gradient(policy, found @ weights), ref.gradient(policy, expected @ weights), 1e-4)


@pytest.mark.parametrize("adaptive", [True, False])
def test_the_error_of_the_data_is_not_weighed_to_the_last_bit(ref, policy, adaptive):
    update, rows = ref.start(policy, adaptive=adaptive), torch.arange(6)
    found = update.measure(rows)
    off = (found.data - ref.rollout().latents[rows].unsqueeze(1)).flatten(2)
    plain = off.square().mean(2) / off.abs().mean(2) if adaptive else off.square().mean(2)
    assert update.options.loss == "x" and found.surrogate.equal(plain.mean(1))


def test_the_three_losses_weigh_times_differently(ref, policy):
    rows = torch.arange(6)
    found = [ref.start(policy, loss=loss).measure(rows).surrogate for loss in ("x", "v", "epsilon")]
    assert not any(torch.allclose(one, other, rtol=1e-2) for one, other in zip(found, [*found[1:], found[0]], strict=True))


@pytest.mark.parametrize("options", [{}, {"adaptive": False}, {"clip": 1e-3, "kl": 0.3}], ids=str)
@pytest.mark.parametrize("loss", ["v", "epsilon"])
def test_before_any_step_the_ratio_is_one_to_the_last_bit_whatever_counts(ref, policy, loss, options):
    update = ref.start(policy, loss=loss, **options)
    spent = policy.evaluations
    _, slope, ratio = ref.steps(policy, update, micro=4)
    assert (ratio == 1).all() and slope.norm() > 0 and spent == 0
