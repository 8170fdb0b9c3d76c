"""The eight invariants of a correct implementation; 3 to 6, for advantages and pairs alone, are in tests/core too."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from vgrpo_core import Policy, Process, Prompt, Schedule
from vgrpo_core.advantages import combine
from vgrpo_core.rollout import Rollout
from vgrpo_core.vgrpo import VGRPO

LOSSES = [{"loss": "v"}, {"loss": "epsilon"}]


@pytest.mark.parametrize(
    "options",
    [{}, {"shared": False}, {"stratified": False, "clip": 1e-3}, {"kl": 0.3}, {"split": True, "steps": 2}, *LOSSES],
    ids=str,
)
def test_1_before_any_step_the_ratio_is_one_to_the_last_bit_and_the_loss_is_antisymmetric(ref, policy, options):
    loss, slope, ratio = ref.steps(policy, ref.start(policy, **options), micro=2)
    assert (ratio == 1).all()
    turned, turned_slope, _ = ref.steps(policy, ref.start(policy, ref.rollout([-a for a in ref.ADVANTAGES]), **options), micro=2)
    assert turned == -loss
    assert turned_slope.equal(-slope) and slope.abs().max() > 0


@pytest.mark.parametrize("options", [{}, {"clip": 6e-3}, {"adaptive": False, "shared": False}, *LOSSES], ids=str)
def test_2_the_first_gradient_is_that_of_the_advantage_weighted_surrogates(ref, policy, options):
    update = ref.start(policy, **options)
    plain = sum(ref.ADVANTAGES[row] * ref.surrogate(policy, ref.rollout(), row, update.options)[0] for row in range(6)) / 6
    ref.close(ref.steps(policy, update)[1], ref.gradient(policy, plain))


@pytest.mark.parametrize("options", [{}, *LOSSES], ids=str)
@pytest.mark.parametrize("change", [lambda r: r + 5, lambda r: 0.01 * r, lambda r: 100 * r + 7], ids=["shift", "scale", "both"])
def test_3_shift_and_positive_scale_of_the_rewards_change_no_gradient(ref, policy, change, options):
    rewards = torch.tensor([[0.2, 0.9, 0.4], [0.1, 0.0, 0.7]])
    slopes = []
    for scores in (rewards, change(rewards)):
        values = combine({"a": scores}, {"a": 1.0}).values.flatten().tolist()
        slopes.append(ref.steps(policy, ref.start(policy, ref.rollout(values), **options))[1])
    ref.close(slopes[1], slopes[0])


@pytest.mark.parametrize("options", [{}, *LOSSES], ids=str)
def test_4_a_group_of_equal_rewards_has_exactly_zero_gradient(ref, policy, options):
    values = combine({"a": torch.tensor([[0.3, 0.3, 0.3], [0.1, 0.0, 0.7]])}, {"a": 1.0}).values.flatten().tolist()
    loss, slope, _ = ref.steps(policy, ref.start(policy, ref.rollout(values), **options))
    embeddings = slope[: policy.module.embeddings.weight.numel()].view(-1, 4)
    assert (embeddings[0] == 0).all() and embeddings[1].abs().max() > 0
    plain = sum(values[row] * ref.surrogate(policy, ref.rollout(), row, VGRPO(**options))[0] for row in (3, 4, 5)) / 6
    ref.close(slope, ref.gradient(policy, plain))
    assert math.isfinite(loss)


def test_4_when_all_groups_have_equal_rewards_no_row_is_used(ref, policy):
    assert len(ref.start(policy, ref.rollout([0.0] * 6)).rows(0)) == 0


@pytest.mark.parametrize("options", [{}, *LOSSES], ids=str)
@pytest.mark.parametrize("order", [(2, 0, 1, 3, 4, 5), (1, 0, 2, 5, 4, 3)])
def test_5_permuting_the_samples_of_a_group_leaves_the_update_unchanged(ref, policy, order, options):
    given, permuted = ref.start(policy, **options), ref.start(policy, ref.rollout(order=order), **options)
    ref.close(ref.steps(policy, permuted)[1], ref.steps(policy, given)[1])


def test_6_pairs_depend_on_run_iteration_and_prompt_and_not_on_the_rows_asked_for(ref, policy):
    update = ref.start(policy)
    whole = update.pairs(torch.arange(6))
    for rows in (torch.tensor([4]), torch.tensor([5, 1])):
        part = update.pairs(rows)
        assert part.times.equal(whole.times[rows]) and part.noise.equal(whole.noise[rows])
    assert whole.noise[0].equal(whole.noise[2]) and not whole.noise[0].equal(whole.noise[3])


@pytest.mark.parametrize("options", [{}, {"clip": 1e-3, "kl": 0.3, "steps": 2}, *LOSSES], ids=str)
def test_7_the_size_of_micro_batches_changes_the_gradient_by_rounding_only(ref, policy, options):
    found = {}
    for micro in (1, 3, 8):
        update = ref.start(policy, micro=micro, **options)
        slopes = [ref.steps(policy, update, step, micro)[1] for step in range(update.options.steps)]
        found[micro] = torch.stack(slopes)
    ref.close(found[1], found[8])
    ref.close(found[3], found[8])


class Gaussian(Policy):
    """Draws from N(mean, 0.25) exactly, by the velocity of that distribution; only the mean is trained."""

    VARIANCE = 0.25

    def __init__(self, mean):
        self.process, self.module = Process("flow"), nn.Module()
        self.module.mean = nn.Parameter(torch.tensor([mean]))

    def output(self, z, t, prompts):
        t = t.expand(len(z))[:, None]
        away = (z - (1 - t) * self.module.mean) / ((1 - t) ** 2 * self.VARIANCE + t**2)
        return t * away - (self.module.mean + (1 - t) * self.VARIANCE * away)

    def schedule(self, steps):
        return Schedule(torch.linspace(1, 0, steps + 1), self.process)

    def noise(self, prompts, generators): ...
    def decode(self, latents): ...
    def export(self, folder): ...

    def sample(self, count, seed):
        noise = torch.randn(count, 1, generator=torch.Generator().manual_seed(seed))
        return (self.module.mean + self.VARIANCE**0.5 * noise).detach()


def drawn(policy, reward, iteration, count=64):
    latents = policy.sample(count, iteration)
    values = combine({"a": reward(latents).view(1, -1)}, {"a": 1.0}).values.flatten().float()
    return Rollout(0, iteration, count, (Prompt("x"),) * count, latents, values, torch.ones(count, dtype=torch.bool))


@pytest.mark.parametrize("reward", [lambda x: x, lambda x: -x, lambda x: -((x - 2) ** 2), lambda x: (x > 0.6).double()])
@pytest.mark.parametrize("iteration", [1, 2, 3])
def test_8_the_plain_surrogates_gradient_is_a_positive_multiple_of_the_score_function_gradient(ref, reward, iteration):
    policy = Gaussian(0.5)
    found = drawn(policy, reward, iteration)
    update = VGRPO(adaptive=False).start(policy, found, 99)
    _, slope, _ = ref.steps(policy, update)
    score = (found.advantages * (found.latents[:, 0] - 0.5)).mean() / policy.VARIANCE
    times = update.pairs(torch.tensor([0])).times[0]
    share = times**2 / ((1 - times) ** 2 * policy.VARIANCE + times**2)  # how far the predicted data follow the mean
    ref.close(-slope[0], 2 * policy.VARIANCE * share.square().mean() * score, 1e-4)


@pytest.mark.parametrize("reward", [lambda x: x, lambda x: -x, lambda x: -((x - 2) ** 2)])
def test_8_the_adaptive_surrogates_gradient_has_the_sign_of_the_score_function_gradient(ref, reward):
    for iteration in range(1, 6):
        policy = Gaussian(0.5)
        found = drawn(policy, reward, iteration)
        _, slope, _ = ref.steps(policy, VGRPO().start(policy, found, 99))
        score = (found.advantages * (found.latents[:, 0] - 0.5)).mean() / policy.VARIANCE
        assert slope[0] * score < 0


@pytest.mark.parametrize(
    "options", [{}, {"adaptive": False}, {"steps": 3, "clip": 0.02}, {"soft_clip": 3.0}, {"loss": "v"}], ids=str
)
@pytest.mark.parametrize("mean", [-1.0, 2.5])
def test_8_training_moves_the_mean_to_the_known_optimum(ref, mean, options):
    policy, optimum = Gaussian(mean), 0.7
    adam = torch.optim.Adam(policy.module.parameters(), lr=0.05)
    for iteration in range(1, 81):
        update = VGRPO(**options).start(policy, drawn(policy, lambda x: -((x - optimum) ** 2), iteration), 99)
        for step in range(update.options.steps):
            policy.module.mean.grad = ref.steps(policy, update, step)[1]
            adam.step()
    assert policy.module.mean.item() == pytest.approx(optimum, abs=0.15)
