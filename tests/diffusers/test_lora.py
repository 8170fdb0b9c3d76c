"""Adapters are on the layers that were asked for, and load anywhere else as they were trained."""

import json

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model, set_peft_model_state_dict
from safetensors import safe_open
from torch import nn

from vgrpo_core import PluginError
from vgrpo_diffusers import LoRA

WEIGHTS = "pytorch_lora_weights.safetensors"


def adapted(module):
    """Return the names of the layers that hold adapters."""
    return {name.rpartition(".lora_A")[0] for name, _ in module.named_modules() if name.endswith(".lora_A")}


def perturbed(policy):
    generator = torch.Generator().manual_seed(5)
    policy.restore({name: p + 0.1 * torch.randn(p.shape, generator=generator) for name, p in policy.state().items()})
    return policy


def projections(pipe, component):
    """List all linear layers that lie directly in attention modules, feed-forward and norms left out."""
    layers = getattr(pipe, component).named_modules()
    owners = [(name, layer) for name, layer in layers if type(layer).__name__ == "Attention"]
    return {f"{name}.{inner}" for name, layer in owners for inner, part in layer.named_modules() if isinstance(part, nn.Linear)}


def test_all_attention_projections_are_adapted_by_default(tiny):
    expected = projections(tiny.pipe(), tiny.component)
    assert len(expected) >= 8
    assert adapted(tiny.policy(lora={"rank": 2}).module) == expected


def test_only_adapters_are_trained(tiny):
    policy = tiny.policy(lora={"rank": 2})
    assert policy.trainable()
    assert all(".lora_A." in name or ".lora_B." in name for name in policy.trainable())
    assert all(2 in parameter.shape for parameter in policy.trainable().values())


def test_fresh_adapters_change_nothing(tiny):
    assert torch.equal(tiny.sample(tiny.policy(lora={"rank": 2})), tiny.sample(tiny.unchanged))


TARGETS = [
    (("attn.to_q",), {"transformer_blocks.0.attn.to_q", "transformer_blocks.1.attn.to_q"}),
    (("attn2.to_out.0", "transformer_blocks.1.ff.net.2"), {"transformer_blocks.0.attn2.to_out.0", "transformer_blocks.1.ff.net.2"}),
    (("proj_out",), {"proj_out"}),
]


@pytest.mark.parametrize(("targets", "expected"), TARGETS)
def test_targets_are_names_or_their_last_parts(sd3_tiny, targets, expected):
    assert adapted(sd3_tiny.policy(lora={"rank": 2, "targets": targets}).module) == expected


@pytest.mark.parametrize(("target", "hint"), [("attn.to_kk", "attn.to_k"), ("to_qq", "to_q")])
def test_a_target_that_matches_nothing_is_refused_with_the_nearest_name(sd3_tiny, target, hint):
    with pytest.raises(PluginError) as caught:
        sd3_tiny.policy(lora={"rank": 2, "targets": ("to_v", target)})
    assert f'lora target "{target}" matches no layer; did you mean "{hint}"?' in str(caught.value)
    assert '"to_v"' not in str(caught.value)


def test_a_part_of_a_name_s_word_is_no_match(sd3_tiny):
    with pytest.raises(PluginError, match=r'lora target "o_q" matches no layer'):
        sd3_tiny.policy(lora={"rank": 2, "targets": ("o_q",)})


@pytest.mark.parametrize("options", [{"rank": 0}, {"rank": 2, "alpha": 0}, {"rank": 2, "aplha": 1}, {}])
def test_options_out_of_range_or_unknown_are_refused(options):
    with pytest.raises(ValueError, match=r"rank|alpha|aplha"):
        LoRA(**options)


def test_alpha_scales_the_adapters_by_alpha_over_rank(sd3_tiny):
    z = torch.randn(1, 16, 8, 12, generator=torch.Generator().manual_seed(0))
    state, outputs = {}, {}
    for alpha in (None, 4.0, 8.0):
        policy = sd3_tiny.policy(lora={"rank": 4, "alpha": alpha, "targets": ("proj_out",)})
        state = state or dict(perturbed(policy).state())
        policy.restore(state)
        with torch.no_grad():
            outputs[alpha] = policy.predict(z, torch.tensor(0.5), ["a"])
    with torch.no_grad():
        base = sd3_tiny.unchanged.predict(z, torch.tensor(0.5), ["a"])
    assert torch.equal(outputs[None], outputs[4.0])
    torch.testing.assert_close(outputs[8.0] - base, 2 * (outputs[4.0] - base), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("alpha", [None, 8.0])
def test_exported_adapters_load_with_the_pipeline_s_own_loader_and_make_the_same_images(tiny, tmp_path, alpha):
    policy, pipe = perturbed(tiny.policy(lora={"rank": 4, "alpha": alpha})), tiny.pipe()
    policy.export(tmp_path)
    given = tiny.call | tiny.embeddings(pipe) | {"output_type": "pt"}
    base = pipe(**given, generator=generators()).images
    pipe.load_lora_weights(tmp_path, weight_name=WEIGHTS)
    images = pipe(**given, generator=generators()).images
    torch.testing.assert_close(images, tiny.draw(policy), rtol=0, atol=1e-5)
    assert (images - base).abs().max() > 1e-2


def generators():
    return [torch.Generator().manual_seed(row) for row in range(3)]


def test_exported_adapters_load_with_peft_alone(tiny, tmp_path):
    policy, pipe = perturbed(tiny.policy(lora={"rank": 4, "alpha": 8.0})), tiny.pipe()
    policy.export(tmp_path)
    prefix, module = f"{tiny.component}.", getattr(pipe, tiny.component)
    with safe_open(tmp_path / WEIGHTS, "pt") as file:
        tensors = {name.removeprefix(prefix): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = json.loads(file.metadata()["lora_adapter_metadata"])
    inject_adapter_in_model(LoraConfig(**{name.removeprefix(prefix): value for name, value in metadata.items()}), module)
    result = set_peft_model_state_dict(module, tensors)
    assert not result.unexpected_keys
    images = pipe(**tiny.call, **tiny.embeddings(pipe), generator=generators(), output_type="pt").images
    torch.testing.assert_close(images, tiny.draw(policy), rtol=0, atol=1e-5)


def test_export_holds_the_adapters_and_nothing_else(sd3_tiny, tmp_path):
    policy = perturbed(sd3_tiny.policy(lora={"rank": 4}))
    policy.export(tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").iterdir()] == [WEIGHTS]
    with safe_open(tmp_path / "model" / WEIGHTS, "pt") as file:
        assert len(list(file.keys())) == len(policy.trainable())
