from __future__ import annotations

import time

import pytest
import torch

from vgrpo_core import Prompt, RunError, Scores
from vgrpo_core.keys import generator
from vgrpo_core.rollout import collect, draws, sample
from vgrpo_core.scoring import Judge

PROMPTS = [Prompt("prompt 0"), Prompt("prompt 3")]


@pytest.fixture
def rows():
    return draws(7, "noise", PROMPTS, 4, 2)


def mean_red(samples):
    return samples.images[:, 0].mean((1, 2))


def drawn(toy, policy, rows, micro, **options):
    return collect(policy, toy.ToySampler(steps=3), [Judge("red", "red", mean_red)], rows, micro=micro, **options)


def test_rows_stand_group_after_group_with_iteration_prompt_and_sample_as_key(rows):
    assert [prompt.text for prompt in rows.prompts] == ["prompt 0"] * 4 + ["prompt 3"] * 4
    assert rows.keys == tuple((2, prompt, sample) for prompt in range(2) for sample in range(4))


def test_parts_of_the_rows_keep_every_row_once_and_in_order(rows):
    parts = [rows.of(range(start, start + 3)) for start in (0, 3, 6)]
    assert [len(part) for part in parts] == [3, 3, 2]
    assert sum((part.keys for part in parts), ()) == rows.keys
    assert sum((part.prompts for part in parts), ()) == rows.prompts


@pytest.mark.parametrize("micro", [1, 3])
def test_r105_images_do_not_depend_on_how_rows_are_split(toy, policy, rows, micro):
    whole, split = drawn(toy, policy, rows, 8), drawn(toy, policy, rows, micro)
    torch.testing.assert_close(split.latents, whole.latents, atol=1e-6, rtol=0)
    torch.testing.assert_close(split.scores["red"], whole.scores["red"], atol=1e-6, rtol=0)


def test_r106_one_image_of_a_batch_can_be_drawn_again_alone(toy, policy, rows):
    whole = drawn(toy, policy, rows, 8)
    alone = sample(policy, toy.ToySampler(steps=3), draws(7, "noise", PROMPTS, 4, 2).of(range(6, 7)))
    torch.testing.assert_close(alone[0], whole.latents[6], atol=1e-6, rtol=0)


def test_r107_samples_of_one_prompt_differ(toy, policy):
    twice = draws(7, "noise", [PROMPTS[0], PROMPTS[0]], 4, 2)
    latents = drawn(toy, policy, twice, 8).latents
    assert len({tuple(row.flatten().tolist()) for row in latents}) == 8


def test_r082_noise_differs_between_runs_iterations_and_from_evaluation(toy, policy):
    places = [(7, "noise", 2), (8, "noise", 2), (7, "noise", 3), (7, "eval")]
    found = [drawn(toy, policy, draws(run, purpose, PROMPTS, 1, *place), 8) for run, purpose, *place in places]
    assert len({tuple(each.latents.flatten().tolist()) for each in found}) == 4


def test_noise_comes_from_the_key_of_its_row(toy, policy, rows):
    still = toy.ToySampler(steps=1)
    policy.output = lambda z, t, prompts: torch.zeros_like(z)
    latents = sample(policy, still, rows)
    assert latents[5].equal(torch.randn(3, 1, 2, generator=generator(7, "noise", 2, 1, 1)))


def test_evaluations_count_every_row_of_every_step(toy, policy, rows):
    drawn(toy, policy, rows, 3)
    assert policy.evaluations == 8 * 3


def test_drawing_takes_no_gradient(toy, policy, rows):
    assert not drawn(toy, policy, rows, 8).latents.requires_grad


@pytest.mark.parametrize(("keep", "kept"), [(0, 0), (4, 4), (5, 5), (99, 8)])
def test_only_the_first_images_are_kept(toy, policy, rows, keep, kept):
    found = drawn(toy, policy, rows, 3, keep=keep)
    assert len(found.images) == kept
    for image, expected in zip(found.images, policy.decode(found.latents), strict=False):
        torch.testing.assert_close(image, expected)


def test_a_sampler_that_changes_the_shape_is_named(toy, policy, rows):
    class Flat(toy.ToySampler):
        name = "flat"

        def sample(self, predict, noise, schedule):
            return noise.flatten(1)

    with pytest.raises(ValueError, match=r'sampler "flat" returned latents \[8, 6\] for noise \[8, 3, 1, 2\]'):
        sample(policy, Flat(), rows)


def test_weights_of_another_model_are_refused_by_name(policy):
    state = policy.state()
    with pytest.raises(ValueError, match=r"outer\.weight"):
        policy.restore({name: value for name, value in state.items() if name != "outer.weight"})
    with pytest.raises(ValueError, match=r"inner\.bias"):
        policy.restore(state | {"inner.bias": torch.zeros(3)})
    assert "frozen" not in state


def test_a_slow_reward_judges_one_micro_batch_while_the_next_is_drawn(toy, policy, rows):
    events = []

    class Slow:
        label = "slow"

        def examine(self, samples):
            events.append("judging")
            time.sleep(0.05)
            events.append("judged")
            return Scores(torch.zeros(len(samples), dtype=torch.float64))

    output = policy.output
    policy.output = lambda *asked: events.append("drawing") or output(*asked)
    collect(policy, toy.ToySampler(steps=1), [Slow()], rows, micro=4)
    first = events.index("judging")
    assert "drawing" in events[first : events.index("judged")]


def test_a_reward_that_fails_stops_the_drawing(toy, policy, rows):
    def fail(samples):
        raise RunError("down")

    before = policy.evaluations
    with pytest.raises(RunError, match="down"):
        collect(policy, toy.ToySampler(steps=1), [Judge("down", "down", fail)], rows, micro=2)
    assert policy.evaluations - before <= 4  # of 8


def test_weights_that_have_diverged_are_said_in_words(trainer):
    made = trainer()
    made.policy.module.outer.bias.data.fill_(torch.nan)
    with pytest.raises(RunError, match=r"latents that are not finite: its weights have diverged; lower optimizer\.lr"):
        made.train()
