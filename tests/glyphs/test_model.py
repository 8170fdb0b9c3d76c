"""The shipped folder is a genuine, small Stable Diffusion 3 that anybody's diffusers loads; it draws, though not well yet."""

import json

import diffusers
import pytest
import torch
from safetensors import safe_open
from transformers import CLIPTextModelWithProjection

from vgrpo_core import Samples
from vgrpo_diffusers import Diffusers
from vgrpo_glyphs import build
from vgrpo_prompts.words import Words
from vgrpo_rewards.ocr import OCR
from vgrpo_rewards.pixel_color import PixelColor

CLASSES = {
    "transformer": diffusers.SD3Transformer2DModel,
    "vae": diffusers.AutoencoderKL,
    "text_encoder": CLIPTextModelWithProjection,
    "text_encoder_2": CLIPTextModelWithProjection,
    "scheduler": diffusers.FlowMatchEulerDiscreteScheduler,
}


@pytest.fixture(scope="session")
def pipe(model):
    absent = {"text_encoder_3": None, "tokenizer_3": None}
    loaded = diffusers.StableDiffusion3Pipeline.from_pretrained(str(model), dtype=torch.float32, **absent)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def test_the_folder_is_shipped_and_smaller_than_12_mb(model):
    files = [path for path in model.rglob("*") if path.is_file()]
    assert (model / "model_index.json").is_file()
    assert 1e6 < sum(path.stat().st_size for path in files) < 12e6


def test_nothing_but_safetensors_and_text_is_shipped(model):
    files = [path for path in model.rglob("*") if path.is_file()]
    assert files
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".txt", ".jinja"}


def test_the_weights_are_in_half_precision_on_disk(model):
    weights = list(model.rglob("*.safetensors"))
    assert len(weights) == 4
    for path in weights:
        with safe_open(path, "pt") as file:
            assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118


def test_no_file_names_a_place_of_the_machine_that_it_was_made_on(model):
    configurations = [json.loads(path.read_text(encoding="utf-8")) for path in model.rglob("config.json")]
    assert configurations
    for configuration in configurations:
        assert "/" not in configuration.get("_name_or_path", "")


def test_its_parts_are_the_real_classes(pipe):
    assert type(pipe) is diffusers.StableDiffusion3Pipeline
    assert {name: type(getattr(pipe, name)) for name in CLASSES} == CLASSES
    assert pipe.text_encoder_3 is pipe.tokenizer_3 is None


def test_its_tokenizers_are_those_that_are_built(pipe, prompts):
    texts = [prompt.text for prompt in prompts[:100]]
    expected = build.tokenizer()(texts).input_ids
    assert pipe.tokenizer(texts).input_ids == pipe.tokenizer_2(texts).input_ids == expected


def test_its_parts_have_the_shapes_that_are_built(pipe):
    for built, name in ((build.transformer(), "transformer"), (build.autoencoder(), "vae")):
        shapes = {key: value.shape for key, value in built.state_dict().items()}
        assert {key: value.shape for key, value in getattr(pipe, name).state_dict().items()} == shapes


def test_it_is_the_builtin_glyphs():
    policy = Diffusers(model="builtin:glyphs", size=(24, 64), call={"max_sequence_length": 1}).load(torch.device("cpu"))
    images = policy.decode(policy.noise(["a"], [torch.Generator()]))
    assert images.shape == (1, 3, 24, 64)
    assert {p.dtype for p in policy.trainable().values()} == {torch.float32}


@pytest.mark.slow
def test_it_draws_held_out_words_that_are_often_misspelt_and_in_colours_that_are_often_wrong(pipe):
    prompts = tuple(Words(split="validation").load())
    generator = torch.Generator().manual_seed(1)
    images = pipe(
        [prompt.text for prompt in prompts], height=24, width=64, num_inference_steps=10, guidance_scale=1.0,
        max_sequence_length=1, generator=generator, output_type="pt",
    ).images  # fmt: skip
    samples = Samples(prompts, images.float())
    ocr = OCR(mode="word").load(torch.device("cpu"))(samples).values.mean().item()
    color = PixelColor().load(torch.device("cpu"))(samples).mean().item()
    assert 0.35 <= ocr <= 0.65
    assert 0.3 <= color <= 0.85
