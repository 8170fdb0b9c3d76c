"""What waits on the CPU changes no result, and what is said of memory is what is used."""


import diffusers
import pytest
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3Model

from vgrpo_core import PluginError
from vgrpo_diffusers import Diffusers
from vgrpo_diffusers.memory import estimate, visiting

LORA = {"lora": {"rank": 2}}
HALF = {"dtype": "bfloat16"}
MODES = [{}, LORA, HALF, HALF | LORA]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def generators(rows=3):
    return [torch.Generator().manual_seed(row) for row in range(rows)]


@pytest.fixture
def moves(monkeypatch):
    """Pretend that there is a CUDA device: moves to a device are written down, by class, and not done."""
    seen = []

    def to(module, *args, **kwargs):
        if args and isinstance(args[0], torch.device):
            seen.append((type(module).__name__, args[0].type))
            return module
        return original(module, *args, **kwargs)

    original = nn.Module.to
    monkeypatch.setattr(nn.Module, "to", to)
    return seen


ENCODER = ("CLIPTextModel", "cuda"), ("CLIPTextModel", "cpu")
VAE = ("AutoencoderKL", "cuda"), ("AutoencoderKL", "cpu")


def load(tiny, **options):
    return Diffusers(model=str(tiny.folder), size=tiny.size, **options).load(CUDA)


def works_of(policy, moves):
    """Write down, between the moves, when the text encoder and the VAE work."""
    for module in (policy.pipe.text_encoder, policy.pipe.vae.decoder):
        module.register_forward_pre_hook(lambda part, _: moves.append((type(part).__name__, "works")))


def test_text_encoder_and_vae_are_on_the_device_only_while_they_work(sd15_tiny, moves, monkeypatch):
    monkeypatch.setattr("vgrpo_diffusers.memory._moved", lambda value, device: value)
    policy = load(sd15_tiny, offload=True)
    assert dict(moves)["UNet2DConditionModel"] == "cuda"
    assert {dict(moves)[name] for name in ("CLIPTextModel", "AutoencoderKL")} == {"cpu"}
    works_of(policy, moves)
    moves.clear()
    z = policy.noise(["new"], generators(1))
    assert moves == []
    policy.predict(z, torch.tensor(0.5), ["new"])
    assert moves == [ENCODER[0], ("CLIPTextModel", "works"), ENCODER[1]]
    moves.clear()
    policy.predict(z, torch.tensor(0.5), ["new"])
    assert moves == []
    images = policy.decode(z)
    assert moves == [VAE[0], ("Decoder", "works"), VAE[1]]
    monkeypatch.undo()
    assert torch.equal(images, sd15_tiny.policy().decode(z))


def test_a_visiting_component_is_given_its_tensors_on_the_device():
    given = visiting(lambda *args, **kwargs: (*args, *kwargs.values()), [], torch.device("meta"))
    found = given(torch.zeros(2), "text", latents=torch.zeros(3))
    assert [part.device.type if isinstance(part, torch.Tensor) else part for part in found] == ["meta", "text", "meta"]


def test_the_vae_leaves_the_device_after_an_exception_too(sd15_tiny, moves, monkeypatch):
    policy = load(sd15_tiny, offload=True)
    monkeypatch.setattr(policy.pipe.vae, "decoder", None)
    moves.clear()
    with pytest.raises((TypeError, AssertionError, RuntimeError)):
        policy.pipe.vae.decode(torch.zeros(1, 4, 2, 2))
    assert moves[-1] == VAE[1]


def test_everything_stays_on_the_device_without_offload(sd15_tiny, moves):
    policy = load(sd15_tiny)
    assert {where for _, where in moves} == {"cuda"}
    assert {"UNet2DConditionModel", "CLIPTextModel", "AutoencoderKL"} <= dict(moves).keys()
    moves.clear()
    z = policy.noise(["new"], generators(1))
    policy.predict(z, torch.tensor(0.5), ["new"])
    policy.decode(z)
    assert moves == []


def test_offload_changes_nothing_on_the_cpu(tiny):
    assert torch.equal(tiny.draw(tiny.policy(offload=True)), tiny.draw(tiny.unchanged))


def held(module):
    return sum(part.numel() * part.element_size() for part in (*module.parameters(), *module.buffers()))


@pytest.mark.parametrize("options", MODES)
def test_the_estimate_is_what_a_loaded_policy_and_its_optimizer_hold(tiny, options):
    sizes = estimate(Diffusers(model=str(tiny.folder), **options))
    policy = tiny.policy(**options)
    optimizer = torch.optim.AdamW(policy.trainable().values())
    for parameter in policy.trainable().values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    modules = {name: part for name, part in policy.pipe.components.items() if isinstance(part, nn.Module)}
    expected = {name: held(part) for name, part in modules.items()}
    expected["gradients"] = sum(p.grad.numel() * p.grad.element_size() for p in policy.trainable().values())
    expected["optimizer"] = sum(v.numel() * v.element_size() for state in optimizer.state.values() for v in state.values())
    assert sizes == expected


def test_the_estimate_reads_no_weights(sd3_tiny, tmp_path):
    for file in sd3_tiny.folder.rglob("*.json"):
        copy = tmp_path / file.relative_to(sd3_tiny.folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    assert estimate(Diffusers(model=str(tmp_path), **LORA)) == estimate(Diffusers(model=str(sd3_tiny.folder), **LORA))


def test_layers_that_a_class_keeps_in_float32_are_counted_as_such(tmp_path):
    """diffusers loads Wan's norms, time embedder and modulation tables in float32 whatever it is asked for."""
    from vgrpo_diffusers.memory import weights

    module = diffusers.WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16, freq_dim=16, ffn_dim=16,
        num_layers=1,
    )  # fmt: skip
    module.save_pretrained(tmp_path)
    loaded = diffusers.WanTransformer3DModel.from_pretrained(tmp_path, torch_dtype=torch.bfloat16)
    assert {p.dtype for p in loaded.parameters()} == {torch.float32, torch.bfloat16}
    assert weights(module.requires_grad_(False), torch.bfloat16) == held(loaded)


def test_tables_that_are_computed_and_not_saved_are_counted_as_they_are(tmp_path):
    from vgrpo_diffusers.memory import weights

    sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    module = Qwen3Model(Qwen3Config(num_attention_heads=2, num_key_value_heads=1, **sizes))
    module.save_pretrained(tmp_path)
    loaded = Qwen3Model.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {buffer.dtype for buffer in loaded.buffers()} == {torch.float32}
    assert weights(module.requires_grad_(False), torch.bfloat16) == held(loaded)


def test_memory_is_said_in_lines_that_add_up(sd3_tiny):
    options = {"model": str(sd3_tiny.folder), **LORA}
    sizes = estimate(Diffusers(**options))
    lines = Diffusers(**options).memory()
    assert [line.split()[0] for line in lines] == [*sizes, "together"]
    assert lines[-1].split()[1:3] == [f"{sum(sizes.values()) / 1e6:.2f}", "MB,"]
    assert "without activations" in lines[-1]
    offloaded = Diffusers(offload=True, **options).memory()
    assert [line.split()[0] for line in offloaded if "on the CPU when idle" in line] == [*[*sizes][:3], "vae"]
    rest = sum(size for name, size in sizes.items() if name in ("transformer", "gradients", "optimizer"))
    assert offloaded[-1].split()[1] == f"{rest / 1e6:.2f}"


def test_the_embedded_model_is_estimated_and_a_missing_one_is_named(tmp_path):
    assert estimate(Diffusers(model="builtin:glyphs"))["transformer"] > 1e6
    with pytest.raises(PluginError, match="no such folder"):
        estimate(Diffusers(model=str(tmp_path / "nowhere")))
