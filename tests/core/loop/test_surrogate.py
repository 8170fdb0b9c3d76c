from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from vgrpo_core import Process
from vgrpo_core.pairs import draw
from vgrpo_core.surrogate import clipped, denoising_loss
from vgrpo_core.vgrpo import VGRPO

# The parts


@given(data=st.lists(st.floats(-5, 5, width=32), min_size=12, max_size=12), adaptive=st.booleans())
def test_the_denoising_loss_is_a_mean_square_over_a_mean_error(data, adaptive):
    data, latents = torch.tensor(data).view(2, 3, 1, 2), torch.tensor([[[0.5, -1.0]], [[2.0, 0.0]]])
    found = denoising_loss(data, latents, adaptive=adaptive)
    for row, pair in itertools.product(range(2), range(3)):
        errors = [data[row, pair, 0, d].item() - latents[row, 0, d].item() for d in range(2)]
        square, mean = sum(e * e for e in errors) / 2, sum(map(abs, errors)) / 2
        expected = square if not adaptive else square / mean if mean else 0
        assert found[row, pair].item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_adaptive_weight_takes_no_gradient():
    data = torch.tensor([[[1.0, -3.0, 0.5]]], requires_grad=True)
    denoising_loss(data, torch.zeros(1, 3), adaptive=True).sum().backward()
    expected = 2 * data.detach() / 3 / data.detach().abs().mean()
    torch.testing.assert_close(data.grad, expected)


def test_a_perfect_prediction_has_no_loss_and_no_gradient():
    data = torch.ones(1, 2, 3, requires_grad=True)
    loss = denoising_loss(data, torch.ones(1, 3), adaptive=True)
    loss.sum().backward()
    assert (loss == 0).all() and (data.grad == 0).all()


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [
        (1.0, 2.0, 2.0, 2.0),
        (1.05, 2.0, 2.1, 2.0),
        (1.5, 2.0, 2.2, 0.0),  # far enough up
        (0.5, 2.0, 1.0, 2.0),  # the way back stays open
        (1.0, -2.0, -2.0, -2.0),
        (0.95, -2.0, -1.9, -2.0),
        (0.5, -2.0, -1.8, 0.0),  # far enough down
        (1.5, -2.0, -3.0, -2.0),  # the way back stays open
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_the_clipped_objective_follows_its_table(ratio, advantage, expected, slope):
    ratio = torch.tensor([ratio], requires_grad=True)
    value = clipped(ratio, torch.tensor([advantage]), 0.1)
    value.sum().backward()
    assert value.item() == pytest.approx(expected) and ratio.grad.item() == pytest.approx(slope)


def test_without_a_clip_the_objective_is_ratio_times_advantage():
    assert clipped(torch.tensor([7.0, 0.1]), torch.tensor([2.0, -3.0]), None).tolist() == pytest.approx([14, -0.3])


# The surrogate, against its definition


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pairs": 1},
        {"pairs": 7, "stratified": False},
        {"shared": False},
        {"adaptive": False},
        {"span": (0.3, 0.5)},
        {"shared": False, "stratified": False, "adaptive": False},
        *({"loss": "v"}, {"loss": "epsilon"}, {"loss": "epsilon", "adaptive": False}),
    ],
    ids=str,
)
def test_the_surrogate_is_that_of_plain_loops(ref, policy, options):
    update = ref.start(policy, **options)
    found = update.measure(torch.tensor([0, 4, 2])).surrogate
    expected = [ref.surrogate(policy, ref.rollout(), row, update.options)[0] for row in (0, 4, 2)]
    ref.close(found, torch.stack(expected))


def test_r128_times_reach_the_network_in_float32_as_they_were_drawn(ref, policy):
    ref.start(policy).measure(torch.arange(6))
    keys = [(ref.SEED, ref.ITERATION, row // ref.GROUP) for row in range(6)]
    times, _ = draw(keys, 4, shape=(3, 1, 2), times=policy.schedule(1000).times, stratified=True, span=(0.02, 1.0))
    assert policy.seen[-1].dtype == torch.float32
    assert policy.seen[-1].tolist() == times.flatten().tolist()


def test_a_model_of_diffusion_is_measured_by_its_own_process(ref, toy):
    torch.manual_seed(0)
    process = Process("v", torch.linspace(0.999, 0.01, 1000))
    policy = toy.ToyPolicy(process=process)
    update = ref.start(policy, pairs=2)
    times, noise = update.pairs(torch.tensor([4]))
    expected = 0
    for t, eps in zip(times[0], noise[0], strict=True):
        alpha, sigma = process.coefficients(t)
        o = ref.rollout().latents[4]
        z = alpha * o + sigma * eps
        error = alpha * z - sigma * policy.output(z[None], t, ["prompt 1"])[0] - o
        expected = expected + error.square().mean() / error.abs().mean() / 2
    ref.close(update.measure(torch.tensor([4])).surrogate, expected[None])


# Steps after the first


@pytest.mark.parametrize(
    "options", [{}, {"clip": 1e-2}, {"clip": 1e-2, "kl": 0.3}, {"kl": 5.0, "adaptive": False}, {"loss": "v"}], ids=str
)
def test_later_steps_follow_the_definition_of_the_objective(ref, policy, options):
    update = ref.start(policy, steps=2, **options)
    ref.steps(policy, update)
    old = ref.move(policy)
    loss, slope, ratio = ref.steps(policy, update, step=1, micro=2)
    expected = ref.objective(policy, ref.rollout(), update.options, old)
    assert loss == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)
    ref.close(slope, ref.gradient(policy, expected), 1e-4)
    assert ratio.min() < 0.99 and ratio.max() > 1.001


def test_the_share_of_clipped_ratios_is_counted(ref, policy):
    update = ref.start(policy, steps=2, clip=1e-3)
    _, values = update.loss(update.rows(0), 0)
    assert (values["ratio/clip_fraction"] == 0).all()
    ref.move(policy)
    _, values = update.loss(update.rows(1), 1)
    outside = (values["ratio"] < 1 - 1e-3) | (values["ratio"] > 1 + 1e-3)
    assert values["ratio/clip_fraction"].tolist() == outside.float().tolist() and outside.any()


def test_the_kl_term_is_the_mean_square_of_what_the_step_moved_the_data(ref, policy):
    update, plain = ref.start(policy, steps=2, kl=2.0), ref.start(policy, steps=2)
    ref.steps(policy, update)
    ref.steps(policy, plain)
    old = ref.move(policy)
    expected = 0
    for row in range(6):
        new, before = (ref.surrogate(policy, ref.rollout(), row, update.options, module)[1] for module in (policy.module, old))
        expected = expected + 2.0 * (new - before.detach()).square().mean() / 6
    (loss, slope, _), (plain_loss, plain_slope, _) = ref.steps(policy, update, 1), ref.steps(policy, plain, 1)
    assert loss - plain_loss == pytest.approx(expected.item(), rel=1e-3)
    ref.close(slope - plain_slope, ref.gradient(policy, expected), 1e-4)


def test_the_kl_term_holds_samples_without_advantage_too(ref, policy):
    flat = ref.rollout([0.0] * 3 + list(ref.ADVANTAGES[3:]))
    update = ref.start(policy, flat, steps=2, kl=0.5)
    assert update.rows(0).tolist() == [3, 4, 5] and update.rows(1).tolist() == [*range(6)]
    ref.steps(policy, update)
    old = ref.move(policy)
    loss, slope, _ = ref.steps(policy, update, 1, micro=4)
    expected = ref.objective(policy, flat, update.options, old)
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    ref.close(slope, ref.gradient(policy, expected), 1e-4)


def test_a_soft_clip_bounds_the_advantages_and_nothing_else(ref, policy):
    bounded = [3 * math.tanh(5 * a / 3) for a in ref.ADVANTAGES]
    soft = ref.steps(policy, ref.start(policy, ref.rollout([5 * a for a in ref.ADVANTAGES]), soft_clip=3.0))
    hard = ref.steps(policy, ref.start(policy, ref.rollout(bounded)))
    assert soft[0] == pytest.approx(hard[0], rel=1e-5)
    ref.close(soft[1], hard[1])


def test_samples_that_nothing_could_judge_take_no_part(ref, policy):
    some = ref.rollout([1.0, -1.0, 0.0, *ref.ADVANTAGES[3:]], valid=[True, True, False, True, True, True])
    update = ref.start(policy, some)
    assert update.rows(0).tolist() == [0, 1, 3, 4, 5]
    assert ref.start(policy, some, steps=2, kl=0.1).rows(1).tolist() == [0, 1, 3, 4, 5]
    plain = sum(some.advantages[row] * ref.surrogate(policy, some, row, update.options)[0] for row in (0, 1, 3, 4, 5)) / 5
    ref.close(ref.steps(policy, update)[1], ref.gradient(policy, plain))


def test_r163_the_gradient_is_not_zero_where_the_ratio_is_one(ref, policy):
    _, slope, ratio = ref.steps(policy, ref.start(policy, ref.rollout([1.0, -1.0, 0.0] * 2)))
    assert (ratio == 1).all() and slope.norm() > 1e-3


# Parts of the groups for each step


def test_split_gives_every_group_to_one_step(ref, policy):
    update = ref.start(policy, ref.rollout(ref.ADVANTAGES * 2), split=True, steps=3)
    rows = [update.rows(step).tolist() for step in range(3)]
    assert sorted(itertools.chain(*rows)) == [*range(12)]
    for part in rows:
        assert all((row // ref.GROUP) in {r // ref.GROUP for r in part} and len(part) % ref.GROUP == 0 for row in part)
    assert [len(part) for part in rows] == [6, 3, 3]


def test_split_measures_the_old_surrogate_of_later_steps_before_the_weights_move(ref, policy):
    update = ref.start(policy, split=True, steps=2, clip=0.3)
    assert (policy.evaluations, update.rows(0).tolist(), update.rows(1).tolist()) == (3 * 4, [0, 1, 2], [3, 4, 5])
    ref.steps(policy, update)
    old = ref.move(policy)
    loss, slope, _ = ref.steps(policy, update, 1)
    expected = ref.objective(policy, ref.rollout(), update.options, old, rows=(3, 4, 5))
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    ref.close(slope, ref.gradient(policy, expected), 1e-4)


# What it costs


@pytest.mark.parametrize("pairs", [1, 4])
@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("options", [{}, {"steps": 2}, {"steps": 3}, {"split": True, "steps": 2}], ids=str)
def test_the_rows_sent_through_the_network_are_as_many_as_planned(ref, policy, pairs, options, kl):
    _, total = ref.spent(policy, pairs=pairs, kl=kl, **options)
    assert total == 6 * VGRPO(pairs=pairs, kl=kl, **options).evaluations


@pytest.mark.parametrize("options", [{}, {"steps": 3}, {"steps": 3, "kl": 0.1}], ids=str)
def test_no_forward_is_spent_on_old_weights_where_the_first_step_measures_them(ref, policy, options):
    assert ref.spent(policy, **options)[0] == 0


def test_flat_groups_cost_nothing(ref, policy):
    flat = ref.rollout([0.0] * 3 + list(ref.ADVANTAGES[3:]))
    assert ref.spent(policy, flat, steps=2) == (0, 3 * 4 * 2)
    assert ref.spent(policy, flat, steps=2, split=True) == (3 * 4, 3 * 4 * 2)
    assert ref.spent(policy, ref.rollout([0.0] * 6), steps=2) == (0, 0)


def test_flat_groups_cost_what_the_kl_term_needs(ref, policy):
    flat = ref.rollout([0.0] * 3 + list(ref.ADVANTAGES[3:]))
    assert ref.spent(policy, flat, steps=2, kl=0.1) == (3 * 4, 3 * 4 * 2 + 3 * 4 * 2)


# Options


@pytest.mark.parametrize(
    "wrong",
    [
        *({"pairs": 0}, {"clip": 0.0}, {"clip": 1.0}, {"kl": -0.1}, {"soft_clip": 0.0}, {"steps": 0}, {"epsilon": 0.1}),
        *({"span": (0.5, 0.5)}, {"span": (0.9, 0.1)}, {"span": (0.0, 1.1)}, {"loss": "noise"}),
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValidationError):
        VGRPO(**wrong)


@pytest.mark.parametrize(("top", "learnt"), [(1.0, [0, 1, 2, 3, 4, 5]), (0.67, [0, 2, 3, 4]), (0.34, [0, 4]), (0.01, [0, 4])])
def test_top_learns_from_the_largest_advantages_of_each_group_alone(ref, policy, top, learnt):
    given = ref.rollout([-2.0, 0.5, 1.5, 0.4, -0.9, 0.1])
    update = ref.start(policy, given, top=top)
    assert update.rows(0).tolist() == learnt
    total, gradient, _ = ref.steps(policy, update)
    expected = ref.objective(policy, given, VGRPO(), policy.module, rows=learnt) * len(learnt) / 6
    ref.close(torch.tensor(total), expected)
    ref.close(gradient, ref.gradient(policy, expected))


def test_of_equal_advantages_top_takes_as_many_as_planned(ref, policy):
    given = ref.rollout([1.0, 1.0, 1.0, -1.0, 1.0, -1.0])
    assert ref.spent(policy, given, top=0.34)[1] == 2 * VGRPO(top=1 / 3).evaluations * 3
