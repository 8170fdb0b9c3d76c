"""Checkpointing, attention backends and compilation change no result, and what can't be trained through is refused."""

import functools

import diffusers
import pytest
import torch
from diffusers.models.attention_dispatch import AttentionBackendName
from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry

from vgrpo_core import PluginError
from vgrpo_diffusers import network

PROMPTS = ["a red sign", "blue", "a red sign"]
LORA = {"lora": {"rank": 2}}
HALF = {"dtype": "bfloat16"}
MODES = [{}, LORA, HALF, HALF | LORA]
TIMES = torch.tensor([0.9, 0.5, 0.1])


def generators(rows=3):
    return [torch.Generator().manual_seed(row) for row in range(rows)]


def gradients(policy):
    z = policy.noise(PROMPTS, generators())
    policy.predict(z, TIMES, PROMPTS).square().mean().backward()
    return {name: p.grad for name, p in policy.trainable().items() if p.grad is not None}


def block(policy):
    """Return a block that has adapters in it or before it; others are not computed again."""
    module = policy.module
    return module.transformer_blocks[0] if hasattr(module, "transformer_blocks") else module.up_blocks[1].resnets[0]


def passes(policy):
    """Count from now on how often a block runs forward."""
    seen = []
    block(policy).register_forward_pre_hook(lambda *_: seen.append(1))
    return seen


@pytest.mark.parametrize("options", MODES)
def test_gradients_with_checkpointing_are_those_without(tiny, options):
    plain, saving = (tiny.perturbed(gradient_checkpointing=on, **options) for on in (False, True))
    counts = [passes(policy) for policy in (plain, saving)]
    expected, found = gradients(plain), gradients(saving)
    assert list(map(len, counts)) == [1, 2]
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_checkpointing_computes_nothing_twice_where_there_is_no_gradient(tiny):
    policy = tiny.policy(gradient_checkpointing=True)
    assert not any(layer.training for layer in policy.module.modules())
    z = policy.noise(PROMPTS, generators())
    count = passes(policy)
    with torch.no_grad():
        policy.predict(z, TIMES, PROMPTS)
    assert len(count) == 1


def test_a_network_without_checkpointing_is_refused(sd3_tiny, monkeypatch):
    monkeypatch.setattr(diffusers.SD3Transformer2DModel, "_supports_gradient_checkpointing", False)
    with pytest.raises(PluginError, match="SD3Transformer2DModel has no gradient checkpointing"):
        sd3_tiny.policy(gradient_checkpointing=True)


def test_chroma_is_refused_as_long_as_checkpointing_changes_its_outputs():
    torch.manual_seed(0)
    module = diffusers.ChromaTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=16, axes_dims_rope=(4, 2, 2), approximator_num_channels=8, approximator_hidden_dim=16,
        approximator_layers=1,
    )  # fmt: skip
    given = {"hidden_states": torch.randn(1, 6, 4), "encoder_hidden_states": torch.randn(1, 3, 16), "timestep": torch.tensor([0.5])}
    given |= {"img_ids": torch.zeros(6, 3), "txt_ids": torch.zeros(3, 3), "attention_mask": torch.arange(9).view(1, 9) != 2}
    plain = module(**given).sample
    with pytest.raises(PluginError, match="ChromaTransformer2DModel has no sound gradient checkpointing"):
        network.checkpoint(module)
    assert torch.equal(module(**given).sample, plain)
    module.enable_gradient_checkpointing()
    assert not torch.allclose(module(**given).sample, plain, atol=1e-3)


@pytest.fixture
def flux():
    """A tiny FLUX.1 transformer: its attention takes a backend."""
    torch.manual_seed(0)
    return diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=(4, 2, 2),
    )  # fmt: skip


def flux_output(module):
    generator = torch.Generator().manual_seed(1)
    drawn = {"hidden_states": (2, 6, 4), "encoder_hidden_states": (2, 3, 16), "pooled_projections": (2, 16)}
    given = {name: torch.randn(shape, generator=generator) for name, shape in drawn.items()}
    return module(**given, timestep=torch.tensor([0.5, 0.5]), img_ids=torch.zeros(6, 3), txt_ids=torch.zeros(3, 3)).sample


def backends(module):
    return {layer.processor._attention_backend for layer in module.modules() if hasattr(layer, "processor")}


def test_an_attention_backend_reaches_every_attention_and_changes_no_result(flux):
    before = flux_output(flux)
    assert backends(flux) == {None}
    network.attend(flux, "_native_math")
    assert backends(flux) == {"_native_math"}
    torch.testing.assert_close(flux_output(flux), before)


def test_the_attention_backend_of_other_models_in_the_process_stays(flux, monkeypatch):
    monkeypatch.setattr(Registry, "_active_backend", AttentionBackendName.NATIVE)
    network.attend(flux, "_native_math")
    assert Registry.get_active_backend()[0] == "native"


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("_native_mathh", r'attention "_native_mathh" is unknown; did you mean "_native_math"\?'),
        ("xxxxxxxx", r'attention "xxxxxxxx" is unknown\n  known: .*native'),
        ("flash", r'(?s)attention "flash" can\'t be used here\n.*flash-attn'),
        ("sage", r'attention "sage" has no backward pass'),
        ("_sage_qk_int8_pv_fp8_cuda", "has no backward pass"),
    ],
)
def test_an_attention_backend_that_cannot_be_trained_with_is_refused(flux, backend, message):
    with pytest.raises(PluginError, match=message):
        network.attend(flux, backend)


def test_a_network_whose_attention_takes_no_backend_is_refused(sd3_tiny):
    with pytest.raises(PluginError, match="the attention of SD3Transformer2DModel takes no backend"):
        sd3_tiny.policy(attention="native")


def compiled(module):
    return {type(layer).__name__ for layer in module.modules() if layer._compiled_call_impl is not None}


@pytest.mark.parametrize("options", [{}, LORA])
def test_a_compiled_network_gives_the_same_gradients_under_the_same_names(sd3_tiny, monkeypatch, options):
    expected = gradients(sd3_tiny.perturbed(**options))
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))  # captured, no compiler run
    policy = sd3_tiny.perturbed(compile=True, **options)
    found = gradients(policy)
    assert compiled(policy.module) == {"SD3Transformer2DModel"}  # it names no repeated blocks
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)


def test_the_repeated_blocks_that_a_network_names_are_compiled_one_by_one(flux, monkeypatch):
    before = flux_output(flux)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    network.compile_blocks(flux)
    assert compiled(flux) == {"FluxTransformerBlock", "FluxSingleTransformerBlock"}
    torch.testing.assert_close(flux_output(flux), before)


def test_compiling_without_a_compiler_is_refused(sd3_tiny, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(network.shutil, "which", lambda name: None)
    with pytest.raises(PluginError, match="needs a C\\+\\+ compiler"):
        sd3_tiny.policy(compile=True)
