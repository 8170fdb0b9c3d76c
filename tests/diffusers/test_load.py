"""What is loaded is frozen where it is not trained, and every mistake gets a message for people."""

import json
import shutil

import diffusers
import huggingface_hub
import pytest
import torch

from vgrpo_core import PluginError
from vgrpo_diffusers import Diffusers
from vgrpo_diffusers.source import find

CPU = torch.device("cpu")


def refusal(**options):
    """Return the message with which a backbone of these options is refused."""
    with pytest.raises(PluginError) as caught:
        Diffusers(**options).load(CPU)
    return str(caught.value)


@pytest.fixture
def copy(sd3_tiny, tmp_path):
    """A copy of the Stable Diffusion 3 folder that a test may damage."""
    return shutil.copytree(sd3_tiny.folder, tmp_path / "copy")


@pytest.mark.parametrize("options", [{}, {"lora": {"rank": 2}}])
def test_everything_is_in_evaluation_mode_and_only_the_denoiser_is_trained(tiny, options):
    policy = tiny.policy(**options)
    modules = {name: part for name, part in policy.pipe.components.items() if isinstance(part, torch.nn.Module)}
    assert {"vae", "text_encoder", tiny.component} <= modules.keys()
    assert not any(layer.training for module in modules.values() for layer in module.modules())
    trained = {name for name, module in modules.items() if any(p.requires_grad for p in module.parameters())}
    assert trained == {tiny.component}


def test_all_weights_of_the_denoiser_are_trained_without_lora(tiny):
    policy = tiny.policy()
    expected = dict(getattr(tiny.pipe(), tiny.component).named_parameters())
    assert policy.trainable().keys() == expected.keys()
    for name, parameter in policy.trainable().items():
        assert torch.equal(parameter, expected[name])


@pytest.mark.parametrize("options", [{}, {"lora": {"rank": 2}}])
def test_what_is_trained_is_float32_and_the_rest_as_asked(tiny, options):
    policy = tiny.policy(dtype="bfloat16", **options)
    assert {p.dtype for p in policy.trainable().values()} == {torch.float32}
    assert (policy.pipe.vae.dtype, policy.pipe.text_encoder.dtype) == (torch.float32, torch.bfloat16)
    frozen = {p.dtype for p in policy.module.parameters() if not p.requires_grad}
    assert frozen == ({torch.bfloat16} if options else set())


@pytest.mark.parametrize("size", [(32, 32), (32, 48), None])
def test_images_have_the_size_that_the_recipe_asks_for(sd3_tiny, size):
    policy = sd3_tiny.policy(size=size)
    assert policy.decode(policy.noise(["a"], [torch.Generator()])).shape == (1, 3, *(size or (32, 32)))


@pytest.mark.parametrize("size", [(32, 50), (20, 48)])
def test_a_size_that_the_pipeline_cannot_draw_is_refused_when_it_is_loaded(sd3_tiny, size):
    message = refusal(model=str(sd3_tiny.folder), size=size)
    assert "divisible by 8" in message
    assert str(sd3_tiny.folder) in message


def test_an_argument_of_a_wrong_value_is_refused_when_it_is_loaded(sd3_tiny):
    assert "max_sequence_length" in refusal(model=str(sd3_tiny.folder), call={"max_sequence_length": 1000})


def test_an_unknown_call_argument_is_refused_with_the_nearest_name(sd3_tiny):
    message = refusal(model=str(sd3_tiny.folder), call={"max_sequence_lenght": 12, "guidance_scale": 1.0})
    assert 'call argument "max_sequence_lenght"; did you mean "max_sequence_length"?' in message
    assert "StableDiffusion3Pipeline does not take it" in message
    assert "guidance_scale" not in message


@pytest.mark.parametrize("name", ["latents", "prompt", "height", "num_inference_steps", "num_images_per_prompt", "self"])
def test_an_argument_that_vgrpo_sets_itself_is_refused(sd3_tiny, name):
    assert f'call argument "{name}"' in refusal(model=str(sd3_tiny.folder), call={name: 1})


def test_there_is_no_guidance_unless_the_recipe_asks_for_it(sd3_tiny):
    assert sd3_tiny.policy().call["guidance_scale"] == 1.0
    assert sd3_tiny.policy(call={"guidance_scale": 3.0, "max_sequence_length": 12}).call["guidance_scale"] == 3.0


def test_guidance_that_the_recipe_asks_for_is_the_pipeline_s(sd3_tiny):
    call = {"guidance_scale": 3.0, "max_sequence_length": 12}
    ours = sd3_tiny.sample(sd3_tiny.policy(call=call), ["a red sign"])
    given = sd3_tiny.call | call | {"generator": [torch.Generator().manual_seed(0)], "output_type": "latent"}
    torch.testing.assert_close(ours, sd3_tiny.pipe()(prompt=["a red sign"], **given).images, rtol=1e-4, atol=1e-4)


def test_a_folder_that_is_missing_is_named(tmp_path):
    message = refusal(model=str(tmp_path / "nowhere"))
    assert message.startswith(f'model "{tmp_path}/nowhere": no such folder')


@pytest.mark.parametrize("model", ["./nowhere", "../nowhere", "~/nowhere", "a/b/c"])
def test_what_looks_like_a_folder_is_not_looked_for_on_the_hub(model):
    assert "no such folder" in refusal(model=model)


def test_a_folder_that_holds_no_pipeline_is_refused(tmp_path):
    message = refusal(model=str(tmp_path))
    assert "holds no model_index.json" in message
    assert "save_pretrained" in message


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"_class_name": "NoSuchPipeline"}'])
def test_a_damaged_index_is_refused(copy, text):
    (copy / "model_index.json").write_text(text)
    message = refusal(model=str(copy))
    assert message.startswith(f'model "{copy}"')


def test_a_folder_without_its_weights_is_refused(copy):
    for file in (copy / "transformer").glob("*.safetensors"):
        file.unlink()
    message = refusal(model=str(copy))
    assert message.startswith(f'model "{copy}" can\'t be loaded')
    assert "connection" not in message


def test_weights_of_another_size_are_refused(copy):
    config = json.loads((copy / "transformer" / "config.json").read_text())
    (copy / "transformer" / "config.json").write_text(json.dumps(config | {"num_attention_heads": 2}))
    assert refusal(model=str(copy)).startswith(f'model "{copy}" can\'t be loaded')


def test_an_unknown_builtin_is_refused_with_the_nearest_name(tmp_path, monkeypatch):
    package = tmp_path / "vgrpo_lettering" / "model"
    package.mkdir(parents=True)
    (package / "model_index.json").write_text("{}")
    (package.parent / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    message = refusal(model="builtin:letering")
    assert 'model "builtin:letering" is not installed; did you mean "lettering"?' in message
    assert "lettering" in message.splitlines()[1]


@pytest.mark.parametrize("model", ["builtin:", "builtin:../core", "builtin:core"])
def test_a_builtin_that_is_no_model_is_refused(model):
    assert f'model "{model}" is not installed' in refusal(model=model)


@pytest.mark.parametrize("model", ["nobody/no-such-model", "no-such-model", "not a name!"])
def test_a_hub_id_that_cannot_be_reached_is_refused_in_one_piece(model, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    message = refusal(model=model)
    assert message.startswith(f'model "{model}" can\'t be loaded')
    assert "Traceback" not in message
    assert "Error:" not in message
    assert message.splitlines()[-1] == "  check the name and the connection; a gated model needs `hf auth login`"


def test_a_scheduler_of_unknown_prediction_is_refused_when_it_is_loaded(sd15_tiny, tmp_path):
    folder = shutil.copytree(sd15_tiny.folder, tmp_path / "copy")
    scheduler = diffusers.DDIMScheduler.from_pretrained(folder, subfolder="scheduler", prediction_type="noise")
    scheduler.save_pretrained(folder / "scheduler")
    message = refusal(model=str(folder))
    assert 'DDIMScheduler predicts "noise"' in message
    assert "known: flow matching, epsilon, v_prediction, sample" in message


def test_a_pipeline_is_described_by_its_folder_and_class(saved):
    for name, cls in (("sd3", "StableDiffusion3Pipeline"), ("sd15", "StableDiffusionPipeline")):
        assert find(str(saved[name].folder)).described == f"{saved[name].folder} ({cls})"
    assert find("owner/name").described == "owner/name from the hub"


def test_the_description_says_what_is_trained(sd3_tiny):
    model = str(sd3_tiny.folder)
    assert Diffusers(model=model).describe().endswith(", float32, training all weights of the denoiser")
    assert Diffusers(model=model, dtype="bfloat16", lora={"rank": 4}).describe().endswith(", bfloat16, training LoRA rank 4")
