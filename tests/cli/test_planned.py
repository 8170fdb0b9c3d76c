from __future__ import annotations

import re

import pytest

from vgrpo_cli.planned import lines
from vgrpo_core import RecipeError


def said(plan, piece):
    (line,) = [line for line in lines(plan) if piece in line]
    return line.partition(piece)[2].strip()


def test_every_number_is_multiplied_out(plan):
    # 12 prompts x 6 images, 10 sampler steps, 2 gradient steps x 4 pairs, 20 iterations
    assert (plan().images, plan().evaluations) == (72, 72 * 10 + 72 * 8)
    assert said(plan(), "12 prompts x 6 samples =") == "72 images"
    assert said(plan(), "rollout:") == "72 images x 10 evaluations = 720"
    assert said(plan(), "update:") == "72 images x 8 evaluations = 576, 2 gradient steps"
    assert said(plan(), "20 iterations x 1,296 evaluations =") == "25,920"
    assert said(plan(), "20 iterations x 2 gradient steps =") == "40"
    assert said(plan(), "240 prompts drawn from 40:") == "6 times each"


def test_a_sampler_counts_evaluations_not_steps(plan):
    assert said(plan("sampler.use=twice"), "rollout:") == "72 images x 20 evaluations = 1,440"


def test_a_rollout_that_costs_other_than_evaluation_is_counted_apart(plan, monkeypatch):
    found = plan()
    monkeypatch.setattr(type(found.recipe.sampler), "rollout_evaluations", property(lambda sampler: sampler.steps + 2.5))
    assert said(found, "rollout:") == "72 images x 12.5 evaluations = 900"
    assert said(found, "20 iterations x 1,476 evaluations =") == "29,520"
    assert said(found, "rounds x 21 images x 10 evaluations =") == "1,050"


@pytest.mark.parametrize(("micro", "samples", "rows"), [(18, 4, 16), (3, 1, 4), (4, 1, 4), (8, 2, 8)])
def test_a_micro_batch_of_the_update_holds_whole_samples(plan, micro, samples, rows):
    found = plan(f"batch.micro={micro}")
    assert found.micro == samples
    assert said(found, "in the rollout,") == f"{samples} x 4 = {rows} rows in the update"


@pytest.mark.parametrize(
    ("every", "iterations", "rounds"),
    [(0, 20, [0, 20]), (6, 20, [0, 6, 12, 18, 20]), (5, 20, [0, 5, 10, 15, 20]), (30, 20, [0, 20])],
)
def test_evaluation_is_counted_at_the_start_every_so_often_and_at_the_end(plan, every, iterations, rounds):
    found = plan(f"eval.every={every}", f"run.iterations={iterations}")
    assert found.rounds == len(rounds)
    assert said(found, "7 held-out prompts x 3 samples =") == "21 images"
    assert said(found, "rounds x 21 images x 10 evaluations =") == f"{len(rounds) * 210:,}"


def test_evaluation_on_training_prompts_is_called_that(plan):
    assert said(plan("eval.prompts.count=40"), "40 training prompts, none held out") == "x 3 samples = 120 images"


def test_r011_the_plan_prints_it(plan):
    assert said(plan("batch.group=2"), "no signal:").startswith("in 68.0% of groups of 2,")


@pytest.mark.parametrize("scale", ["group", "batch"])
def test_r014_the_plan_states_which_statistics_the_advantages_use(plan, scale):
    assert said(plan(f"combine.scale={scale}"), "advantages:").startswith(f"centre group, scale {scale}, of each reward")
    assert "of the weighted sum of rewards" in said(plan("combine.use=sum_then_normalize"), "advantages:")


def test_what_will_be_loaded_is_named_with_distribution_and_version(plan):
    found = [re.sub(" +", " ", line).strip() for line in lines(plan())][:7]
    assert found == [
        "load backbone painting of somewhere (small 1.0)",
        "sampler straight (small 1.0)",
        "prompts numbers (small 1.0)",
        "objective vgrpo (small 1.0)",
        "reward blank (small 1.0), weight 2",
        'reward bright (small 1.0) as "light", weight 1',
        "monitor bright (small 1.0)",
    ]


def test_images_are_spread_over_ranks_whatever_their_number_and_each_gets_some(plan):
    assert said(plan(ranks=3), "12 prompts x 6 samples =") == "72 images, 24 on each of 3 ranks"
    assert said(plan(ranks=5), "12 prompts x 6 samples =") == "72 images, 14 or 15 on each of 5 ranks"
    with pytest.raises(RecipeError, match=r"\[batch\] 72 images an iteration are too few for 73 ranks; start 72 at most"):
        plan(ranks=73)


def test_r092_sharded_ranks_have_to_draw_equally_many_images(plan):
    with pytest.raises(RecipeError, match=r"all of 5 ranks have to draw equally many images; found \[batch\] 72 and \[eval\] "):
        plan("run.shard=true", ranks=5)
