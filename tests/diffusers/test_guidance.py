"""Guidance of evaluation alone: how it is asked for, what the plan says of it, and what it costs."""

import pytest
import torch

from vgrpo_cli.planned import lines
from vgrpo_cli.shipped import find
from vgrpo_core import PluginError
from vgrpo_diffusers import Diffusers
from vgrpo_diffusers.verify import verify
from vgrpo_recipe import load
from vgrpo_recipe.plan import Plan

SCALE = {"guidance_scale": 4.5}


def rows(policy):
    """Count the rows that a policy's network is given, forward by forward."""
    counts = []
    hook = lambda module, args, given: counts.append(len(given["hidden_states"]))  # noqa: E731
    policy.module.register_forward_pre_hook(hook, with_kwargs=True)
    return counts


def test_evaluation_merges_its_arguments_over_those_of_the_call(sd3_tiny):
    policy = sd3_tiny.policy(call={"max_sequence_length": 12, "guidance_scale": 2.0}, eval_call={**SCALE, "negative_prompt": "bad"})
    trained = dict(policy.call)
    assert trained == {"guidance_scale": 2.0, "height": 32, "width": 48, "max_sequence_length": 12}
    with policy.evaluating():
        assert policy.call == {**trained, "guidance_scale": 4.5, "negative_prompt": "bad"}
    assert policy.call == trained


def test_evaluation_without_arguments_of_its_own_is_the_rollout_bit_for_bit(tiny):
    policy = tiny.unchanged
    with policy.evaluating():
        images = tiny.draw(policy)
    assert torch.equal(images, tiny.draw(policy))


def test_after_an_exception_the_arguments_are_those_of_before(sd3_tiny):
    policy = sd3_tiny.policy(eval_call=SCALE)
    before = dict(policy.call)
    with pytest.raises(RuntimeError, match="broken"), policy.evaluating():
        raise RuntimeError("broken")
    assert policy.call == before


def test_r110_guidance_sends_twice_the_rows_through_the_network_and_1_does_not(sd3_tiny):
    policy = sd3_tiny.policy(eval_call=SCALE)
    counts = rows(policy)
    sd3_tiny.sample(policy)
    with policy.evaluating():
        sd3_tiny.sample(policy)
    assert counts == [3] * 4 + [6] * 4


def refusal(tiny, **options):
    with pytest.raises(PluginError) as caught:
        tiny.policy(**options)
    return str(caught.value)


def test_an_unknown_argument_of_evaluation_is_refused_with_the_nearest_name(sd3_tiny):
    message = refusal(sd3_tiny, eval_call={"guidance_scael": 4.5})
    assert message.startswith('eval_call argument "guidance_scael"; did you mean "guidance_scale"?')


@pytest.mark.parametrize("name", ["latents", "height", "num_inference_steps"])
def test_an_argument_of_evaluation_that_vgrpo_sets_itself_is_refused(sd3_tiny, name):
    assert f'eval_call argument "{name}"' in refusal(sd3_tiny, eval_call={name: 1})


def test_an_argument_of_evaluation_that_the_pipeline_refuses_is_reported_when_it_is_loaded(sd3_tiny):
    assert "max_sequence_length" in refusal(sd3_tiny, eval_call={"max_sequence_length": 1000})


def notes(**options):
    return Diffusers(model="builtin:glyphs", **options).notes()


def test_r109_the_plan_says_the_guidance_of_rollout_loss_and_evaluation():
    plan = Plan.of(load(find("words"), ["backbone.eval_call={guidance_scale=4.5}"]))
    said = [line.strip() for line in lines(plan)]
    assert "guidance: none in rollout and loss, guidance_scale 4.5 in evaluation" in said
    assert not any("warning" in line for line in said)


def test_r109_guidance_in_training_is_warned_of():
    line, warning = notes(call=SCALE)
    assert line == "guidance: guidance_scale 4.5 in rollout and loss, guidance_scale 4.5 in evaluation"
    assert warning.startswith("warning: guidance above 1 in rollout and loss can make training collapse")
    assert len(notes(call={"true_cfg_scale": 2})) == 2
    assert len(notes(call={"guidance_scale": 1.0}, eval_call=SCALE)) == 1


def test_the_plan_says_what_else_is_different_in_evaluation():
    (line,) = notes(eval_call={**SCALE, "negative_prompt": "bad"})
    assert line == "guidance: none in rollout and loss, guidance_scale 4.5 in evaluation with negative_prompt bad"


def test_a_scale_that_is_no_number_does_not_stop_the_plan():
    assert len(notes(call={"guidance_scale": "high"})) == 1


def test_the_deep_check_holds_evaluation_against_the_pipeline_too(sd3_tiny):
    policy = sd3_tiny.policy(eval_call={**SCALE, "negative_prompt": "bad"})
    *_, last = verify(policy)
    assert last.startswith("pass: network output at 2 steps, largest difference")
    assert last.endswith(", in evaluation")


def test_an_output_of_evaluation_that_is_off_is_refused(sd3_tiny):
    policy = sd3_tiny.policy(eval_call=SCALE)
    right = policy.output
    policy.output = lambda z, t, prompts: (1.01 if policy.mode is policy.evaluation else 1.0) * right(z, t, prompts)
    with pytest.raises(PluginError, match=r"network output at 2 steps: the policy differs from the pipeline by 1.0e-02"):
        verify(policy)
