"""The stand-in is in the pipeline during a call, and the pipeline's own scheduler at any other time."""

import pytest
import torch

from vgrpo_diffusers.standin import standing_in


def test_the_scheduler_is_back_after_a_call(tiny):
    policy = tiny.unchanged
    own = policy.pipe.scheduler
    with standing_in(policy.pipe, []) as standin:
        assert policy.pipe.scheduler is standin
    assert policy.pipe.scheduler is own


@pytest.mark.parametrize("primitive", ["predict", "noise", "decode", "schedule"])
def test_the_scheduler_is_back_after_an_exception(tiny, primitive, monkeypatch):
    policy, z = tiny.unchanged, torch.zeros(1, 4, 4, 4)
    own, seen = policy.pipe.scheduler, []

    def broken(*_, **__):
        seen.append(policy.pipe.scheduler)
        raise RuntimeError("broken")

    monkeypatch.setattr(policy.pipe, "check_inputs", broken)
    arguments = {
        "predict": (z, torch.tensor(0.5), ["a"]), "noise": (["a"], [torch.Generator()]), "decode": (z,), "schedule": (77,),
    }  # fmt: skip
    with pytest.raises(RuntimeError, match="broken"):
        getattr(policy, primitive)(*arguments[primitive])
    assert policy.pipe.scheduler is own
    assert seen[0] is not own


def test_gradients_flow_through_predict_and_only_through_predict(tiny):
    policy = tiny.unchanged
    noise = policy.noise(["a"], [torch.Generator()])
    assert policy.predict(noise, torch.tensor(0.5), ["a"]).requires_grad
    assert not noise.requires_grad
    assert not policy.decode(noise).requires_grad
