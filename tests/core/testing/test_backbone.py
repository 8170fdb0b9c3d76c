"""A good backbone passes its check, and one that breaks a single promise fails with the sentence about it."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from vgrpo_core import Process, Schedule
from vgrpo_core.testing import check_backbone


def test_a_good_backbone_passes_and_keeps_its_weights(good, monkeypatch):
    policy = good.Grey().load(torch.device("cpu"))
    before = {name: weight.clone() for name, weight in policy.state().items()}
    monkeypatch.setattr(good.Grey, "load", lambda self, device: policy)
    check_backbone(good.Grey())
    assert all(torch.equal(weight, before[name]) for name, weight in policy.state().items())
    assert all(parameter.grad is None for parameter in policy.trainable().values())


def method(name, make):
    """Return what replaces a method of a policy by one made of the real one."""
    return lambda policy: setattr(policy, name, make(getattr(policy, name), policy))


def unused(policy):
    policy.module.register_parameter("spare", torch.nn.Parameter(torch.zeros(2)))


def sticky(real, policy):
    @contextmanager
    def evaluating():
        policy.module[0].bias.data.add_(1)
        yield

    return evaluating


def uncounted(real, policy):
    return lambda z, t, prompts: policy.output(z, t, prompts).float()


def narrow(real, policy):
    return lambda *given: real(*given).bfloat16()


def of_batch(real, policy):
    return lambda latents: real(latents) / real(latents).max()


def first_time(real, policy):
    return lambda z, t, prompts: real(z, t[:1] if t.ndim else t, prompts)


def stale(real, policy):
    def export(folder):
        folder.mkdir()
        (folder / "weights.txt").write_text("those from before")

    return export


def schedule(times, process="flow"):
    return lambda real, policy: lambda steps: Schedule(times(steps), Process(process))


def drawn(draw):
    return method("noise", lambda real, policy: draw)


def each(change):
    """Return noise that is good but for `change`, a function of it and the prompts."""
    return method("noise", lambda real, policy: lambda prompts, generators: change(real(prompts, generators), prompts))


def outputs(change):
    return method("output", lambda real, policy: lambda *given: change(real(*given)))


def images(change):
    return method("decode", lambda real, policy: lambda latents: change(real(latents)))


line = lambda steps: torch.linspace(1, 0, steps + 1)  # noqa: E731

POLICIES = {
    "nothing to train": (lambda policy: policy.module.requires_grad_(False), "trains nothing"),
    "half precision": (lambda policy: policy.module[2].half(), r"trains 2\.weight, 2\.bias in half precision"),
    "double times": (method("schedule", schedule(lambda steps: line(steps).double())), r"not float32 \[2\]"),
    "a time too few": (method("schedule", schedule(lambda steps: line(steps)[:-1])), r"\[1\], not float32 \[2\]"),
    "rising times": (method("schedule", schedule(lambda steps: line(steps).flip(0))), "do not fall from noise to data"),
    "another process": (method("schedule", schedule(line, "sample")), "`schedule` has another process"),
    "rows missing": (each(lambda noise, prompts: noise[:1]), r"`noise` returns \[1, 4, 4\] for 3 generators"),
    "global noise": (drawn(lambda prompts, generators: torch.randn(len(prompts), 4, 4)), "more than its generators"),
    "noise of prompts": (
        each(lambda noise, prompts: noise + noise.new_tensor([[[len(p)]] for p in prompts])),
        "more than its gener",
    ),
    "one generator for all": (
        drawn(lambda prompts, generators: torch.randn(len(prompts), 4, 4, generator=generators[0])),
        "depends on the rows beside it",
    ),
    "no noise": (each(lambda noise, prompts: torch.zeros_like(noise)), "two generators give the same noise"),
    "output shape": (outputs(lambda output: output[:, :1]), r"`predict` returns \[3, 1, 4\] for latents \[3, 4, 4\]"),
    "output precision": (method("predict", narrow), "`predict` returns torch.bfloat16, not float32"),
    "output not finite": (outputs(lambda output: output / 0), "values that are not finite"),
    "not counted": (method("predict", uncounted), "does not count its rows"),
    "dropout": (outputs(lambda output: torch.dropout(output, 0.5, True)), "a second `predict` differs"),
    "evaluation stays": (method("evaluating", sticky), "`evaluating` leaves something behind"),
    "one time for all": (method("output", first_time), "rows at times of their own differ"),
    "batch statistics": (outputs(lambda output: output - output.mean(0)), "rows at times of their own differ"),
    "a single time is another": (
        method("output", lambda real, policy: lambda z, t, prompts: real(z, t if t.ndim else t / 2, prompts)),
        "one time for all rows and the same time for each row differ",
    ),
    "images beyond 1": (images(lambda image: 2 * image), r"what `decode` returns must lie in \[0, 1\]"),
    "images for far latents": (method("decode", lambda real, p: lambda z: real(z) * (1 + (z.abs() > 10).any())), "must lie in"),
    "grey images": (images(lambda image: image[:, :1]), r"must be \[3, 3, H, W\], not \[3, 1, 4, 4\]"),
    "8-bit images": (images(lambda image: (255 * image).byte()), "must be a float32 tensor, not Tensor torch.uint8"),
    "images of a batch": (method("decode", of_batch), "an image depends on the latents beside it"),
    "no gradient": (outputs(torch.Tensor.detach), "no gradient flows through `predict`"),
    "a spare parameter": (unused, "no gradient reaches spare: freeze what takes no part"),
    "no way back": (method("restore", lambda real, policy: lambda state: None), "`restore` does not bring back the weights"),
    "no file": (method("export", lambda real, policy: lambda folder: folder.mkdir()), "`export` writes no file"),
    "stale files": (method("export", stale), "`export` writes the same files after the weights have changed"),
}


@pytest.mark.parametrize(("damage", "sentence"), POLICIES.values(), ids=POLICIES)
def test_a_policy_that_breaks_a_promise_fails_with_its_sentence(good, damage, sentence, fails):
    class Broken(good.Grey):
        """Broken in one way."""

        def load(self, device):
            policy = super().load(device)
            damage(policy)
            return policy

    fails(check_backbone, Broken(), f'backbone "grey".*{sentence}')


def test_a_backbone_that_loads_a_bare_network_fails(good, monkeypatch, fails):
    monkeypatch.setattr(good.Grey, "load", lambda self, device: torch.nn.Linear(1, 1))
    fails(check_backbone, good.Grey(), "`load` returns Linear, not a Policy")


def test_a_backbone_that_describes_itself_in_two_lines_fails(good, monkeypatch, fails):
    monkeypatch.setattr(good.Grey, "describe", lambda self: "grey\npictures")
    fails(check_backbone, good.Grey(), "`describe` has to return one line")


def test_one_prompt_is_not_enough(good, fails):
    fails(check_backbone, good.Grey(), "one prompt proves little", prompts=["a red square"])


def test_a_backbone_from_a_heavy_module_fails(heavy, fails):
    fails(check_backbone, heavy.Grey(), 'importing "heavy_plugins" imports numpy')
