"""Every exception is needed: without it, what the contract states does not hold."""

import pytest
import torch

from vgrpo_diffusers import exceptions

PROMPTS = ["a red sign", "blue", "a longer prompt than both"]
TIMES = torch.tensor([0.9, 0.5, 0.1])


def holds(family):
    """Tell whether a policy draws what the pipeline draws, takes a time for each row, and has gradients everywhere."""
    try:
        policy = family.policy()
        latents = family.sample(policy)
        policy.predict(family.drawn.samples[1], TIMES, PROMPTS).square().mean().backward()
    except Exception:
        return False
    reached = all(p.grad is not None for name, p in policy.trainable().items() if not family.idle(name))
    return reached and torch.allclose(latents, family.drawn.latents, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["AuraFlow", "CogView4", "FLUX.2 dev", "FLUX.2 klein", "HiDream", "Wan 2.2", "Wan 2.2 5B"])
def test_without_its_exception_a_pipeline_is_not_trained_right(built, name, monkeypatch):
    family = built(name)
    assert holds(family)
    monkeypatch.setattr(exceptions, "EXCEPTIONS", {})
    assert not holds(family)


def test_no_exception_is_for_a_pipeline_that_no_test_covers(measure):
    known = {row["pipeline"] for row in measure.json.loads(measure.FIGURES.read_text(encoding="utf-8"))["families"]}
    assert set(exceptions.EXCEPTIONS) <= known


def test_z_image_runs_its_network_once_a_row_by_default_and_twice_at_the_others_scale_of_none(built):
    family, rows = built("Z-Image"), []
    for policy in (family.policy(), family.policy(call=family.entry["call"] | {"guidance_scale": 1.0})):
        policy.module.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
        policy.predict(family.drawn.samples[0], TIMES[0], PROMPTS)
    assert rows == [3, 6]


def test_gradients_through_hidream_s_experts_are_those_of_its_own_training_mode(built):
    family = built("HiDream")
    ours, theirs = family.policy(), family.policy()
    for part in theirs.module.modules():
        if hasattr(part, "moe_infer"):
            part.train().gate.eval()  # the gate's training mode only adds a loss of its own
    outputs = [policy.predict(family.drawn.samples[1], TIMES, PROMPTS) for policy in (ours, theirs)]
    for output in outputs:
        output.square().mean().backward()
    torch.testing.assert_close(*outputs)
    for name, parameter in ours.trainable().items():
        torch.testing.assert_close(parameter.grad, theirs.trainable()[name].grad, msg=name)


def test_the_shift_of_cogview4_is_undone():
    """mu s / (1 + (mu - 1) s) is what its scheduler makes of s."""
    before = torch.linspace(0.01, 1, 7).double()
    for mu in (0.3, 1.0, 2.5):
        after = mu * before / (1 + (mu - 1) * before)
        torch.testing.assert_close(exceptions.unshifted(after, mu), before)


def test_subclasses_share_the_exception_of_the_class_they_extend():
    class FLUX:
        pass

    parent = type("ZImagePipeline", (), {})
    assert exceptions.exception(type("Mine", (parent,), {})) is exceptions.EXCEPTIONS["ZImagePipeline"]
    assert exceptions.exception(FLUX) == exceptions.Exceptional()
