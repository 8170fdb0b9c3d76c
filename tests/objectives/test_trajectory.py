"""flow_grpo, mixgrpo and dancegrpo against their definition in plain loops, what they cost, and whole runs."""

from __future__ import annotations

import copy
import json
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

import vgrpo_recipe as recipes
from vgrpo_core import PluginError, RecipeError
from vgrpo_core.copies import Copies
from vgrpo_core.offers import Offer
from vgrpo_core.ranks import Ranks
from vgrpo_core.run import run
from vgrpo_objectives import DanceGRPO, FlowGRPO, MixGRPO, vgrpo_objectives
from vgrpo_recipe.plan import Plan
from vgrpo_recipe.registry import Registry
from vgrpo_samplers import DanceSDE, FlowSDE, WindowSDE, vgrpo_samplers

TESTS = Path(__file__).parents[1]
LOOP = TESTS / "core" / "loop"
ref = SimpleNamespace(**runpy.run_path(str(TESTS / "objectives" / "trajectory_reference.py")))
tools = SimpleNamespace(**runpy.run_path(str(LOOP / "reference.py")))  # steps, move, gradient, close

FLOW, WINDOW, DANCE = FlowSDE(steps=5), WindowSDE(steps=6, width=3, stay=2), DanceSDE(steps=5)
CASES = [
    (FlowGRPO(learn=4, steps=2), FLOW),
    (FlowGRPO(learn=4, steps=2, clip=1e-2, kl=0.5), FLOW),
    (FlowGRPO(learn=2, steps=2, clip=0.5, advantage_clip=0.6), FlowSDE(steps=5, last=True)),
    (MixGRPO(learn=3, steps=2, clip=1e-2), WINDOW),
    (MixGRPO(learn=3, steps=2, kl=0.04), WINDOW),
    (DanceGRPO(learn=2, steps=2, clip=1e-3), DANCE),
]


@pytest.fixture
def policy(toy):
    torch.manual_seed(0)
    return toy.ToyPolicy()


# The loss


@pytest.mark.parametrize(("options", "sampler"), CASES, ids=lambda part: part.name)
def test_later_steps_follow_the_definition(policy, options, sampler):
    reference, copies = copy.deepcopy(policy.module), Copies(policy.trainable())
    copies.add("reference")
    tools.move(policy, -0.1)
    rollout = ref.rollout(policy, sampler, copies=copies)
    update = options.start(policy, rollout, 2)
    old = tools.move(policy)
    loss, slope, ratio = tools.steps(policy, update, step=1, micro=2)
    expected = ref.objective(policy, sampler, rollout, options, update.chosen, old, reference)
    assert loss == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    tools.close(slope, tools.gradient(policy, expected), 1e-3)
    each = [[ref.ratio(policy, sampler, rollout, old, row, k).item() for k in update.chosen] for row in range(6)]
    assert ratio.tolist() == pytest.approx([sum(row) / len(row) for row in each], rel=1e-4)
    assert abs(ratio - 1).max() > 1e-2


def test_what_is_logged_is_a_mean_over_the_steps_of_each_sample(policy):
    copies = Copies(policy.trainable())
    copies.add("reference")
    reference, rollout = copy.deepcopy(policy.module), ref.rollout(policy, FLOW, copies=copies)
    update = FlowGRPO(learn=4, steps=2, clip=1e-2, kl=0.1).start(policy, rollout, 9)
    tools.move(policy, 0.01)
    _, found = update.loss(torch.arange(6), 1)
    assert list(found) == list(update.statistics) == ["ratio", "ratio/clip_fraction", "kl"]
    for row in range(6):
        ratios = [ref.ratio(policy, FLOW, rollout, reference, row, k).item() for k in range(4)]
        parts = [ref.divergence(policy, FLOW, rollout, reference, row, k).item() for k in range(4)]
        assert found["ratio/clip_fraction"][row].item() == sum(not 0.99 <= ratio <= 1.01 for ratio in ratios) / 4
        assert found["kl"][row].item() == pytest.approx(sum(parts) / 4, rel=1e-4)
    assert 0 < found["ratio/clip_fraction"].mean() < 1
    assert FlowGRPO(learn=4, clip=None).start(policy, rollout, 9).statistics == ("ratio",)


def test_samples_that_nothing_could_judge_take_no_part(policy):
    rollout = ref.rollout(policy, FLOW, [1.0, -1.0, 0.0, *ref.ADVANTAGES[3:]], [True, True, False, True, True, True])
    options = FlowGRPO(learn=4)
    update = options.start(policy, rollout, 9)
    assert update.rows(0).tolist() == [0, 1, 3, 4, 5]
    expected = ref.objective(policy, FLOW, rollout, options, range(4), copy.deepcopy(policy.module), policy.module)
    tools.close(tools.steps(policy, update)[1], tools.gradient(policy, expected), 1e-4)


def test_a_kl_term_holds_samples_without_advantage_too_from_the_first_step_on(policy):
    copies = Copies(policy.trainable())
    copies.add("reference")
    advantages, valid = [0.0, 0.0, 0.0, 1.0, -1.0, 0.0], [True] * 5 + [False]
    rollout = ref.rollout(policy, FLOW, advantages, valid, copies)
    assert FlowGRPO(learn=4, kl=0.1).start(policy, rollout, 9).rows(0).tolist() == [0, 1, 2, 3, 4]
    assert FlowGRPO(learn=4).start(policy, rollout, 9).rows(0).tolist() == [3, 4]


def test_split_gives_every_group_to_one_step_and_its_loss_is_a_mean_over_that_part(policy):
    options = FlowGRPO(learn=4, steps=2, split=True, clip=1e-2)
    rollout = ref.rollout(policy, FLOW)
    update = options.start(policy, rollout, 9)
    assert [update.rows(step).tolist() for step in (0, 1)] == [[0, 1, 2], [3, 4, 5]]
    old = tools.move(policy, 0.01)
    part = replace(rollout, valid=torch.tensor([False] * 3 + [True] * 3))
    expected = ref.objective(policy, FLOW, part, options, update.chosen, old, old)
    loss, slope, _ = tools.steps(policy, update, step=1, micro=2)
    assert loss == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    tools.close(slope, tools.gradient(policy, expected), 1e-3)


def test_two_ranks_that_each_drew_half_add_up_to_one(policy):
    options = FlowGRPO(learn=2)
    whole, slope, _ = tools.steps(policy, options.start(policy, ref.rollout(policy, FLOW), 9))
    halves = [options.start(policy, ref.rollout(policy, FLOW, ranks=Ranks(rank, 2)), 9) for rank in range(2)]
    policy.module.zero_grad()
    losses = [half.loss(torch.tensor(rows), 0)[0] for half, rows in zip(halves, ([0, 1, 2], [3, 4, 5]), strict=True)]
    sum(losses).backward()
    assert sum(losses).item() == pytest.approx(whole, abs=1e-6)
    tools.close(torch.cat([p.grad.flatten() for p in policy.trainable().values()]), slope)


# Which steps


def learnt(policy, rollout, options, rows):
    """The times that the network is asked at, for each of some rows."""
    update, before = options.start(policy, rollout, 9), len(policy.seen)
    update.loss(torch.tensor(rows), 0)
    (times,) = policy.seen[before:]
    assert times.dtype == torch.float32
    return [row.tolist() for row in times.view(len(rows), -1)]


def test_all_samples_learn_from_the_same_random_steps_of_an_iteration(policy):
    options, found = DanceGRPO(learn=2), []
    for iteration in range(1, 25):
        rollout = ref.rollout(policy, DANCE, iteration=iteration)
        chosen = learnt(policy, rollout, options, [0, 3, 5])
        assert chosen[0] == chosen[1] == chosen[2] == learnt(policy, rollout, options, [1])[0]
        assert chosen[0] == sorted(set(chosen[0]), reverse=True) and len(chosen[0]) == 2
        found.append(tuple(chosen[0]))
    noisy = policy.schedule(5).times[:4].tolist()
    assert {time for pair in found for time in pair} == set(noisy)
    assert len(set(found)) == 6  # all pairs of four steps


def test_another_run_chooses_other_steps(policy):
    rollouts = [ref.rollout(policy, DANCE, iteration=iteration) for iteration in range(1, 9)]
    one, other = (
        [learnt(policy, rollout.__class__(**{**vars(rollout), "seed": seed}), DanceGRPO(learn=2), [0]) for rollout in rollouts]
        for seed in (1, 2)
    )
    assert one != other


def test_with_as_many_steps_as_it_learns_from_it_takes_them_all(policy):
    assert learnt(policy, ref.rollout(policy, FLOW), FlowGRPO(learn=4), [2]) == [policy.schedule(5).times[:4].tolist()]


@pytest.mark.parametrize("kept", [None, 3])
def test_too_few_noisy_steps_are_named(policy, kept):
    rollout = ref.rollout(policy, FlowSDE(steps=4))
    given = rollout if kept else rollout.__class__(**{**vars(rollout), "trajectory": None})
    with pytest.raises(PluginError, match=f'"flow_grpo" learns from 4 steps that draw noise, and the sampler has kept {kept or 0}'):
        FlowGRPO(learn=4).start(policy, given, 9)


# What it costs


@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("options", [{"learn": 4}, {"learn": 2, "steps": 3}, {"learn": 2, "steps": 2, "split": True}], ids=str)
def test_the_rows_sent_through_the_network_are_as_many_as_planned(policy, options, kl):
    objective, copies = FlowGRPO(kl=kl, **options), Copies(policy.trainable())
    for name, decay in objective.copies(1).items():
        assert decay == 1
        copies.add(name)
    rollout = ref.rollout(policy, FLOW, copies=copies)
    before, backwards = policy.evaluations, policy.backwards
    update = objective.start(policy, rollout, 2)
    for step in range(objective.steps):
        tools.steps(policy, update, step, micro=2)
    assert policy.evaluations - before == 6 * objective.evaluations
    assert policy.backwards - backwards == 6 * objective.learn * (1 if objective.split else objective.steps)
    assert objective.rows_per_sample == objective.noisy_steps == objective.learn


@pytest.mark.parametrize("wrong", [{"learn": 0}, {"clip": 0.0}, {"clip": 1.0}, {"advantage_clip": 0.0}, {"kl": -0.1}, {"eta": 1}])
def test_options_that_make_no_sense_are_refused(wrong):
    for objective in (FlowGRPO, MixGRPO, DanceGRPO):
        with pytest.raises(ValidationError):
            objective(**wrong)


def test_the_defaults_are_those_of_the_papers_and_fit_their_samplers():
    pairs = [(FlowGRPO(), FlowSDE()), (MixGRPO(), WindowSDE()), (DanceGRPO(), DanceSDE())]
    assert [(o.learn, s.noisy_steps, s.steps) for o, s in pairs] == [(9, 9, 10), (4, 4, 25), (9, 15, 16)]
    assert all((o.clip, o.advantage_clip, o.kl) == (1e-4, 5, 0) for o, _ in pairs)


# Whole runs

RECIPE = f"""\
[run]
iterations = 3
seed = 7
[backbone]
use = "{LOOP}/toy.py:ToyBackbone"
[sampler]
use = "window_sde"
steps = 5
width = 2
stay = 2
[prompts]
use = "{LOOP}/toy.py:ToyPrompts"
[batch]
prompts = 4
group = 6
[objective]
use = "mixgrpo"
learn = 2
[optimizer]
lr = 1e-2
[[reward]]
use = "{LOOP}/toy.py:ToyReward"
[eval]
watch = false
"""


@pytest.fixture
def recipe(tmp_path):
    """Load the recipe above with overrides."""
    kinds = {"objective": vgrpo_objectives(), "sampler": vgrpo_samplers()}
    offers = [Offer(kind, each.name, each, "vgrpo", "0") for kind, classes in kinds.items() for each in classes]

    def load(*overrides):
        path = tmp_path / "toy.toml"
        path.write_text(RECIPE)
        return recipes.load(path, overrides, Registry(tuple(offers)))

    return load


def lines(recipe, folder):
    run(recipe, folder, lambda event: None)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_with_mixgrpo_raises_the_reward(recipe, tmp_path):
    found = lines(recipe("run.iterations=20", "checkpoint.every=0"), tmp_path / "run")
    assert found[-1]["eval/toy/mean"] > found[0]["eval/toy/mean"] + 0.1


def test_a_run_costs_what_its_plan_says(recipe, tmp_path):
    changed = recipe("run.iterations=3", "sampler.stay=1", "sampler.compress=0.5", "objective.kl=0.1")  # a whole cycle of windows
    spent = lines(changed, tmp_path / "run")[-1]
    assert spent["evaluations"] == pytest.approx(3 * Plan.of(changed).evaluations, rel=1e-12)


def test_the_kl_term_of_a_run_is_to_the_weights_at_the_start(recipe, tmp_path):
    found = [line["kl/mean"] for line in lines(recipe("objective.kl=0.01"), tmp_path / "run")[1:]]
    assert found[0] == pytest.approx(0, abs=1e-9)
    assert 1e-6 < found[1] < found[2]


def test_micro_batches_change_a_run_by_rounding_only(recipe, tmp_path):
    whole, parts = (lines(recipe("objective.steps=2", f"batch.micro={micro}"), tmp_path / f"{micro}") for micro in (64, 4))
    for key in ("eval/toy/mean", "reward/toy/mean", "ratio/mean"):
        one, other = ([line.get(key) for line in found if line.get(key) is not None] for found in (whole, parts))
        assert one == pytest.approx(other, abs=1e-4) and one


@pytest.mark.parametrize("objective", ["flow_grpo", "mixgrpo", "dancegrpo"])
def test_a_sampler_that_draws_no_noise_is_refused_with_those_that_do(recipe, objective):
    with pytest.raises(RecipeError) as caught:
        recipe(f"objective.use={objective}", "sampler={use='euler'}")
    why = f'"euler" draws none on the way, and objective "{objective}" learns from 2 steps that draw noise'
    assert f"{why}; use dance_sde or flow_sde or window_sde" in str(caught.value)


def test_a_sampler_that_draws_noise_in_too_few_steps_is_refused_with_both_numbers(recipe):
    with pytest.raises(RecipeError, match='"window_sde" draws noise in 2 steps, and objective "mixgrpo" learns from 3 steps'):
        recipe("objective.learn=3")
