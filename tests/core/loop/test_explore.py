"""Samplers that draw noise on the way: which noise, which rows, and what a run counts."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from vgrpo_core import Prompt
from vgrpo_core.keys import generator
from vgrpo_core.rollout import collect, draws, explore, sample
from vgrpo_core.scoring import Judge
from vgrpo_recipe.plan import Plan

WALK = f"sampler.use='{Path(__file__).with_name('toy.py')}:ToyWalk'"
PROMPTS = [Prompt("prompt 0"), Prompt("prompt 3")]


@pytest.fixture
def rows():
    """Two prompts, four samples of each, in iteration 2."""
    return draws(7, "noise", PROMPTS, 4, 2)


@pytest.fixture
def walk(toy):
    return toy.ToyWalk(steps=3)


def drawn(policy, sampler, rows, micro=8):
    judge = Judge("red", "red", lambda samples: samples.images[:, 0].mean((1, 2)))
    return collect(policy, sampler, [judge], rows, micro=micro)


def outputs(policy, z, t, rows):
    return policy.output(z, t, [prompt.text for prompt in rows.prompts]).detach()


# The noise


def test_the_noise_of_a_step_comes_from_iteration_prompt_sample_and_step(policy, walk, rows):
    found = explore(policy, walk, rows)
    noise = (found.after - found.mean) / walk.deviation
    for row, (iteration, prompt, image) in enumerate(rows.keys):
        for step in range(2):
            source = generator(7, "steps", iteration, prompt, image, step)
            torch.testing.assert_close(noise[row, step], torch.randn(3, 1, 2, generator=source), rtol=0, atol=1e-5)


def test_every_row_step_and_iteration_has_other_noise(policy, walk, rows):
    found = [explore(policy, walk, each) for each in (rows, draws(7, "noise", PROMPTS, 4, 3), draws(8, "noise", PROMPTS, 4, 2))]
    noise = torch.stack([each.after - each.mean for each in found]).flatten(0, 2).flatten(1)
    assert len({tuple(each) for each in noise.round(decimals=4).tolist()}) == 3 * 8 * 2


def test_a_step_asked_for_twice_gives_the_same_noise_and_leaves_the_global_generator_alone(toy, policy, rows):
    seen, before = [], torch.get_rng_state()

    class Twice(toy.ToyWalk):
        def explore(self, predict, noise, schedule, draw, iteration):
            seen.append((draw(1), draw(0), draw(1), iteration))
            return super().explore(predict, noise, schedule, draw, iteration)

    explore(policy, Twice(steps=3), rows)
    first, other, again, iteration = seen[0]
    assert first.equal(again) and not first.equal(other) and first.shape == (8, 3, 1, 2) and iteration == 2
    assert torch.get_rng_state().equal(before)


def test_samples_of_a_prompt_start_from_noise_of_their_own(policy, walk, rows):
    starts = explore(policy, walk, rows).before[:, 0]
    for row, key in enumerate(rows.keys):
        assert starts[row].equal(torch.randn(3, 1, 2, generator=generator(7, "noise", *key)))


def test_with_same_start_all_samples_of_a_prompt_start_from_one_noise_and_other_prompts_from_another(toy, policy, rows):
    found = explore(policy, toy.ToyWalk(steps=3, same_start=True), rows)
    starts = found.before[:, 0].view(2, 4, 6)
    assert (starts == starts[:, :1]).all() and not starts[0, 0].equal(starts[1, 0])
    assert starts[1, 0].view(3, 1, 2).equal(torch.randn(3, 1, 2, generator=generator(7, "noise", 2, 1, 0)))
    assert len({tuple(row.flatten().tolist()) for row in found.latents}) == 8


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("micro", [1, 3])
def test_r105_nothing_of_a_trajectory_depends_on_how_rows_are_split(toy, policy, rows, micro, start):
    sampler = toy.ToyWalk(steps=3, same_start=start)
    whole, split = drawn(policy, sampler, rows), drawn(policy, sampler, rows, micro)
    for part in ("latents", "before", "after", "mean", "std", "times"):
        torch.testing.assert_close(getattr(split.trajectory, part), getattr(whole.trajectory, part), rtol=0, atol=1e-6)
    torch.testing.assert_close(split.scores["red"], whole.scores["red"], rtol=0, atol=1e-6)


# The rows


@pytest.mark.parametrize("micro", [3, 8])
def test_the_rows_of_a_trajectory_are_those_of_the_latents(policy, walk, rows, micro):
    """Follow each row by the definition of the sampler: the noisy steps that were kept, then Euler to the end."""
    found = drawn(policy, walk, rows, micro)
    kept, times = found.trajectory, policy.schedule(3).times
    assert kept.latents is found.latents and kept.before.shape == kept.after.shape == kept.mean.shape == (8, 2, 3, 1, 2)
    for step, (t, end) in enumerate(pairwise(times[:3])):
        mean = kept.before[:, step] + (end - t) * outputs(policy, kept.before[:, step], t, rows)
        torch.testing.assert_close(kept.mean[:, step], mean, rtol=0, atol=1e-5)
    assert kept.before[:, 1].equal(kept.after[:, 0])
    last = kept.after[:, 1] + (times[3] - times[2]) * outputs(policy, kept.after[:, 1], times[2], rows)
    torch.testing.assert_close(found.latents, last, rtol=0, atol=1e-5)


def test_the_transition_of_a_trajectory_gives_the_mean_of_its_own_steps(policy, walk, rows):
    kept = drawn(policy, walk, rows, 3).trajectory
    for step in range(2):
        z = kept.before[:, step]
        found = kept.transition(outputs(policy, z, kept.times[step, 0], rows), z, step)
        torch.testing.assert_close(found, kept.mean[:, step], rtol=0, atol=1e-5)


def test_drawing_a_trajectory_takes_no_gradient(policy, walk, rows):
    kept = drawn(policy, walk, rows).trajectory
    assert not any(part.requires_grad for part in kept[:5]) and policy.backwards == 0


def test_a_sampler_without_noise_leaves_no_trajectory(toy, policy, rows):
    assert drawn(policy, toy.ToySampler(steps=3), rows).trajectory is None


def test_a_stochastic_sampler_that_changes_the_shape_is_named(toy, policy, rows):
    class Flat(toy.ToyWalk):
        name = "flat"

        def explore(self, *asked):
            found = super().explore(*asked)
            return found._replace(latents=found.latents.flatten(1))

    with pytest.raises(ValueError, match=r'sampler "flat" returned latents \[8, 6\] for noise \[8, 3, 1, 2\]'):
        explore(policy, Flat(steps=3), rows)


# In a run


def test_training_explores_and_evaluation_samples(trainer):
    made, called = trainer(WALK), []
    kind = type(made.recipe.sampler)

    class Noted(kind):
        def explore(self, *asked):
            called.append("explore")
            return super().explore(*asked)

        def sample(self, *asked):
            called.append("sample")
            return super().sample(*asked)

    object.__setattr__(made.recipe, "sampler", Noted(steps=3))
    object.__setattr__(made.recipe.eval, "sampler", made.recipe.sampler)
    made.train()
    assert called == ["explore"]
    made.evaluate()
    assert called == ["explore", "sample"]


def test_images_of_evaluation_have_no_noise_but_that_of_their_start(toy, policy):
    rows = draws(0, "eval", PROMPTS, 2)
    found = drawn(policy, toy.ToyWalk(steps=3, same_start=True), rows)
    assert found.trajectory is None
    assert found.latents.equal(sample(policy, toy.ToySampler(steps=3), rows))


def test_the_objective_gets_the_trajectory_of_the_latents(trainer):
    made, seen = trainer(WALK, "batch.micro=3"), []
    step = made.step
    made.step = lambda update, rollout, *rest: seen.append(rollout) or step(update, rollout, *rest)
    made.train()
    assert seen[0].trajectory.latents is seen[0].latents and len(seen[0].trajectory.before) == 8


@pytest.mark.parametrize("thrifty", [False, True])
def test_evaluations_of_two_iterations_are_twice_those_of_the_plan(trainer, thrifty):
    """The thrifty sampler spends 3 evaluations in odd iterations and 2 in even ones; its rollouts count as 2.5."""
    made = trainer(WALK, f"sampler.thrifty={str(thrifty).lower()}")
    plan = Plan.of(made.recipe)
    assert plan.evaluations == 8 * ((2.5 if thrifty else 3) + 3 * 2) and made.recipe.sampler.evaluations == 3
    spent = [made.train()["evaluations"] for _ in range(2)]
    assert spent == [8 * (3 + 6), 2 * plan.evaluations]


# What takes a gradient


@pytest.mark.parametrize("options", [[], ["objective.split=true"], ["objective.steps=1", "objective.pairs=5"]], ids=str)
def test_backwards_are_the_rows_that_a_gradient_went_through(trainer, options):
    made, passed = trainer(*options), 0
    output = made.policy.output

    def counted(z, t, prompts):
        found = output(z, t, prompts)
        if found.requires_grad:
            found.register_hook(lambda _: count(len(z)))
        return found

    def count(rows):
        nonlocal passed
        passed += rows

    made.policy.output = counted
    for _ in range(2):
        line = made.train()
    made.evaluate()
    o = made.recipe.objective
    assert line["backwards"] == passed == 2 * 8 * o.pairs * (1 if o.split else o.steps)
    assert made.backwards == passed and line["evaluations"] > passed


def test_backwards_go_on_where_a_restored_trainer_left_them(trainer):
    whole, first, second = trainer(), trainer(), trainer()
    for _ in range(2):
        whole.train()
        first.train()
    second.restore(first.state())
    assert second.backwards == first.backwards == 2 * 8 * 3 * 2
    assert second.train()["backwards"] == whole.train()["backwards"] == 3 * 8 * 3 * 2
    assert math.isfinite(second.line["grad/norm"])
