"""Where flow_grpo, mixgrpo and dancegrpo have to agree with something known exactly."""

from __future__ import annotations

import copy
import math
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal, kl_divergence

from vgrpo_core.copies import Copies
from vgrpo_objectives import DanceGRPO, FlowGRPO, MixGRPO
from vgrpo_objectives.trajectory import divergence, log_ratio
from vgrpo_samplers import DanceSDE, FlowSDE, WindowSDE

TESTS = Path(__file__).parents[1]
ref = SimpleNamespace(**runpy.run_path(str(TESTS / "objectives" / "trajectory_reference.py")))
tools = SimpleNamespace(**runpy.run_path(str(TESTS / "core" / "loop" / "reference.py")))

CASES = [
    (FlowGRPO(learn=4), FlowSDE(steps=5)),
    (FlowGRPO(learn=5), FlowSDE(steps=5, last=True)),
    (MixGRPO(learn=3), WindowSDE(steps=6, width=3, stay=2)),
    (DanceGRPO(learn=2), DanceSDE(steps=5)),
]
FLOW = CASES[0][1]
NUMBERS = st.lists(st.floats(-3, 3, width=32), min_size=6, max_size=6)


@pytest.fixture
def policy(toy):
    torch.manual_seed(0)
    return toy.ToyPolicy()


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0].name}-{case[1].name}-{case[0].learn}")
def case(request):
    return request.param


def kept(policy):
    copies = Copies(policy.trainable())
    copies.add("reference")
    return copies


# At the weights that drew the samples


@pytest.mark.parametrize("micro", [1, 2, 6])
def test_r161_before_any_step_the_ratio_is_one_and_r162_nothing_is_clipped(policy, case, micro):
    options, sampler = case
    update = options.start(policy, ref.rollout(policy, sampler), micro)
    for rows in torch.arange(6).split(micro):
        _, found = update.loss(rows, 0)
        torch.testing.assert_close(found["ratio"], torch.ones(len(rows)), rtol=0, atol=2e-6)
        assert (found["ratio/clip_fraction"] == 0).all()


def test_the_first_gradient_is_minus_the_advantage_weighted_score_function(policy, case):
    options, sampler = case
    rollout = ref.rollout(policy, sampler)
    update = options.start(policy, rollout, 9)
    _, slope, _ = tools.steps(policy, update)
    each = [
        rollout.advantages[row] * ref.log_density(policy, policy.module, sampler, rollout, row, k) / len(update.chosen)
        for row in range(6)
        for k in update.chosen
    ]
    tools.close(slope, tools.gradient(policy, -sum(each) / 6), 1e-4)


def test_r163_the_gradient_is_not_zero_where_the_ratio_is_one(policy, case):
    options, sampler = case
    _, slope, _ = tools.steps(policy, options.start(policy, ref.rollout(policy, sampler, [1.0, -1.0, 0.0] * 2), 9))
    assert slope.norm() > 1e-3


def test_opposite_advantages_give_the_opposite_gradient(policy, case):
    options, sampler = case
    one, other = (
        tools.steps(policy, options.start(policy, ref.rollout(policy, sampler, [sign * a for a in ref.ADVANTAGES]), 9))[1]
        for sign in (1, -1)
    )
    tools.close(one, -other)


# Advantages


def test_advantages_are_clipped(policy):
    wild, tame = [70.0, -9.0, 2.0, 0.5, -5.0, -1.0], [5.0, -5.0, 2.0, 0.5, -5.0, -1.0]
    clipped, plain = (tools.steps(policy, FlowGRPO(learn=4).start(policy, ref.rollout(policy, FLOW, a), 9)) for a in (wild, tame))
    assert clipped[0] == plain[0] and clipped[1].equal(plain[1])
    half = FlowGRPO(learn=4, advantage_clip=2.5).start(policy, ref.rollout(policy, FLOW, wild), 9)
    small = FlowGRPO(learn=4).start(policy, ref.rollout(policy, FLOW, [2.5, -2.5, 2.0, 0.5, -2.5, -1.0]), 9)
    assert tools.steps(policy, half)[1].equal(tools.steps(policy, small)[1])


def test_a_group_with_equal_rewards_contributes_exactly_nothing(policy, case):
    options, sampler = case
    rollout = ref.rollout(policy, sampler, [0.0, 0.0, 0.0, *ref.ADVANTAGES[3:]])
    update = options.start(policy, rollout, 9)
    assert update.rows(0).tolist() == [3, 4, 5]
    policy.module.zero_grad()
    update.loss(torch.tensor([0, 1, 2]), 0)[0].backward()
    assert all((p.grad == 0).all() for p in policy.trainable().values())
    old = copy.deepcopy(policy.module)
    expected = ref.objective(policy, sampler, rollout, options, update.chosen, old, old)
    tools.close(tools.steps(policy, update)[1], tools.gradient(policy, expected), 1e-4)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("way", [1, -1], ids=["right", "wrong"])
def test_far_enough_in_the_right_direction_no_gradient_is_left_and_the_way_back_stays_open(policy, advantage, way):
    update = FlowGRPO(learn=1, steps=2, clip=1e-4).start(policy, ref.rollout(policy, FLOW, [advantage] + [0.0] * 5), 9)
    _, slope, _ = tools.steps(policy, update)
    parameters = list(policy.trainable().values())
    for parameter, part in zip(parameters, slope.split([p.numel() for p in parameters]), strict=True):
        parameter.data -= way * 1e-2 * part.view_as(parameter) / slope.norm()
    _, again, ratio = tools.steps(policy, update, step=1)
    assert way * advantage * (ratio - 1) > 1e-4
    assert (again == 0).all() if way > 0 else again.norm() > slope.norm() / 2


# The reference


def test_the_kl_term_and_its_gradient_vanish_at_the_reference(policy):
    rollout = ref.rollout(policy, FLOW, copies=kept(policy))
    with_kl, without = (FlowGRPO(learn=4, kl=kl).start(policy, rollout, 9) for kl in (10.0, 0.0))
    _, found = with_kl.loss(torch.arange(6), 0)
    assert (found["kl"] == 0).all()
    tools.close(tools.steps(policy, with_kl)[1], tools.steps(policy, without)[1], 1e-6)


def test_the_kl_term_pulls_towards_the_reference(policy):
    copies, start = kept(policy), torch.cat([p.detach().flatten() for p in policy.trainable().values()])
    tools.move(policy, 0.02)
    rollout = ref.rollout(policy, FLOW, [0.0] * 6, copies=copies)
    _, slope, _ = tools.steps(policy, FlowGRPO(learn=4, kl=1.0).start(policy, rollout, 9))
    here = torch.cat([p.detach().flatten() for p in policy.trainable().values()])
    assert torch.dot(-slope, start - here) > 0


def test_looking_at_the_reference_leaves_the_weights_as_they_were(policy):
    copies = kept(policy)
    tools.move(policy)
    before, reference = copy.deepcopy(policy.state()), copy.deepcopy(copies.kept)
    update = FlowGRPO(learn=4, kl=1.0).start(policy, ref.rollout(policy, FLOW, copies=copies), 9)
    tools.steps(policy, update, micro=2)
    assert all(value.equal(before[name]) for name, value in policy.state().items())
    assert all(value.equal(reference["reference"][name]) for name, value in copies.kept["reference"].items())


# Micro-batches


@pytest.mark.parametrize("kl", [0.0, 0.3])
def test_the_size_of_micro_batches_does_not_matter(policy, kl):
    rollout = ref.rollout(policy, FLOW, copies=kept(policy))
    updates = [FlowGRPO(learn=4, steps=2, clip=1e-2, kl=kl).start(policy, rollout, micro) for micro in (1, 6)]
    tools.move(policy, 0.01)
    one, whole = (tools.steps(policy, update, 1, micro) for update, micro in zip(updates, (1, 6), strict=True))
    assert one[0] == pytest.approx(whole[0], abs=1e-6)
    tools.close(one[1], whole[1])


# Densities


@given(after=NUMBERS, mean=NUMBERS, old=NUMBERS, std=st.floats(0.3, 2))
def test_the_log_ratio_is_the_difference_of_two_log_densities(after, mean, old, std):
    after, mean, old = (torch.tensor(part, dtype=torch.float64).view(1, 2, 3, 1) for part in (after, mean, old))
    found = log_ratio(after, mean, old, torch.tensor([std, 2 * std], dtype=torch.float64))
    for k, deviation in enumerate([std, 2 * std]):
        difference = Normal(mean[0, k], deviation).log_prob(after[0, k]) - Normal(old[0, k], deviation).log_prob(after[0, k])
        assert found[0, k].item() == pytest.approx(difference.mean().item(), abs=1e-9)


@given(mean=NUMBERS, other=NUMBERS, rate=st.floats(0.3, 2), length=st.floats(0.01, 1))
def test_the_kl_term_is_the_kl_divergence_of_the_steps_times_their_length(mean, other, rate, length):
    mean, other = (torch.tensor(part, dtype=torch.float64).view(1, 1, 6) for part in (mean, other))
    std = rate * math.sqrt(length)
    expected = kl_divergence(Normal(mean, std), Normal(other, std)).mean() * length
    assert divergence(mean, other, torch.tensor([rate], dtype=torch.float64)).item() == pytest.approx(expected.item(), abs=1e-9)
