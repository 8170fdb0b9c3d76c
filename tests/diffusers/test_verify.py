"""`vgrpo check --deep`: a policy is held against its own pipeline."""

from __future__ import annotations

import pytest
import torch

from vgrpo_core import PluginError
from vgrpo_diffusers.verify import verify

TOPICS = ["initial latents", "network output at 2 steps", "a time for each row", "latents after 2 steps", "images", "a gradient"]


@pytest.mark.parametrize("lora", [None, {"rank": 2}])
def test_a_sound_policy_passes_every_check(saved, lora):
    for name in ("glyphs", "sd3", "sd15"):
        lines = verify(saved[name].policy(lora=lora))
        assert all(line.startswith(f"pass: {topic}") for line, topic in zip(lines, TOPICS, strict=True)), lines


def test_another_solver_s_latents_are_not_compared_and_that_is_said(sd3_tiny):
    import diffusers

    policy = sd3_tiny.policy()
    policy.pipe.scheduler = diffusers.FlowMatchHeunDiscreteScheduler.from_config(policy.pipe.scheduler.config)
    assert any(line.startswith("not compared: latents, for FlowMatchHeun") for line in verify(policy))


def test_an_output_that_is_off_is_refused_with_how_far(sd3_tiny):
    policy = sd3_tiny.policy()
    right = policy.output
    policy.output = lambda z, t, prompts: 1.01 * right(z, t, prompts)
    with pytest.raises(PluginError, match=r"network output at 2 steps: the policy differs from the pipeline by 1.0e-02"):
        verify(policy)


def test_an_output_that_takes_one_time_for_all_rows_is_refused(sd3_tiny):
    policy = sd3_tiny.policy()
    right = policy.output
    policy.output = lambda z, t, prompts: right(z, t.flatten()[:1].expand(len(z)), prompts)
    with pytest.raises(PluginError, match="a time for each row"):
        verify(policy)


def test_a_parameter_that_no_gradient_reaches_though_it_matters_is_named(sd3_tiny):
    policy = sd3_tiny.policy()
    right, idle = policy.output, torch.nn.Parameter(torch.zeros(1))
    policy.module.register_parameter("idle", idle)
    policy.output = lambda z, t, prompts: right(z, t, prompts) + idle.detach()
    with pytest.raises(PluginError, match=r"no gradient reaches 1 of \d+ trained parameters\n  idle"):
        verify(policy)
    assert idle.item() == 0


def test_a_parameter_that_changes_nothing_needs_no_gradient(sd3_tiny):
    policy = sd3_tiny.policy()
    policy.module.register_parameter("idle", torch.nn.Parameter(torch.zeros(2)))
    assert verify(policy)[-1].endswith("but 1, which change nothing")
