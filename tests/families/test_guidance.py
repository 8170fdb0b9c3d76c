"""Inside `evaluating`, a policy is the pipeline with evaluation's guidance; outside, nothing has changed to the last bit."""

import pytest
import torch

PROMPTS = ["a red sign", "blue", "a longer prompt than both"]
TIMES = torch.tensor([0.9, 0.5, 0.1])
BAD = {"negative_prompt": "bad"}
GUIDANCE = [
    ("Stable Diffusion 3", {"guidance_scale": 4.5}),
    ("Stable Diffusion 3", {"guidance_scale": 4.5, **BAD}),
    ("FLUX.1 dev", {"guidance_scale": 6.0}),
    ("FLUX.1 dev", {"true_cfg_scale": 4.0, **BAD}),
]


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * max(1.0, float(expected.abs().max())))


def noise(policy):
    return policy.noise(PROMPTS, [torch.Generator().manual_seed(row) for row in range(3)])


@pytest.mark.parametrize(("name", "guidance"), GUIDANCE)
def test_sampling_in_evaluation_is_the_pipeline_s_with_that_guidance(built, name, guidance):
    family = built(name)
    policy = family.policy(eval_call=guidance)
    with policy.evaluating():
        latents = family.sample(policy)
        images = policy.frames(latents)
    drawn = family.draw(family.pipe(), **guidance)
    close(latents, drawn.latents)
    close(images, drawn.images)
    assert (latents - family.drawn.latents).abs().max() > 1e-4


def done(family, policy):
    """Everything that training asks of a policy: latents, images, times, an output and its gradients."""
    latents = family.sample(policy)
    output = policy.predict(noise(policy), TIMES, PROMPTS)
    gradients = torch.autograd.grad(output.square().mean(), list(policy.trainable().values()), allow_unused=True)
    parts = [latents, policy.frames(latents), policy.schedule(4).times, output]
    return [part.detach() for part in (*parts, *gradients) if part is not None]


@pytest.mark.parametrize(("name", "guidance"), GUIDANCE)
def test_rollout_and_loss_are_unchanged_to_the_last_bit_after_evaluation(built, name, guidance):
    family = built(name)
    policy = family.policy(eval_call=guidance)
    with pytest.raises(RuntimeError, match="broken"), policy.evaluating():
        family.sample(policy)
        raise RuntimeError("broken")
    found, expected = done(family, policy), done(family, family.policy())
    assert len(found) == len(expected) > 10
    assert all(map(torch.equal, found, expected))


def test_times_of_evaluation_are_remembered_apart(built):
    """`sigmas` are FLUX's own argument for the times to visit, before its shift."""
    policy = built("FLUX.1 dev").policy(eval_call={"sigmas": [1.0, 0.2]})
    before = policy.schedule(2).times
    with policy.evaluating():
        inside = policy.schedule(2).times
        assert torch.equal(policy.schedule(2).times, inside)
    assert torch.equal(policy.schedule(2).times, before)
    assert inside[0] == before[0] == 1
    assert inside[1] < before[1]
