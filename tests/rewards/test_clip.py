"""What all CLIP rewards share, against transformers and open_clip called directly."""

import gzip
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
import transformers as T
from PIL import Image

from vgrpo_core import PluginError
from vgrpo_rewards.clip import load_clip
from vgrpo_rewards.networks import Limit

from .clip_models import END, LONG, SIDE, START, letters, network, save_clip

CPU = torch.device("cpu")
TEXTS = ["a cat", "a red dog on a hill", "", "sea"]


def pictures(count=3, height=40, width=56):
    return np.random.default_rng(5).integers(0, 256, (count, height, width, 3), np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("clip"))


@pytest.fixture
def load(folder):
    """Return load(dtype, model=..., processor=...), for a reward called "judge"."""

    def load(dtype=torch.float32, model=folder, processor=folder):
        return load_clip(model, processor, CPU, dtype, Limit("judge", 77))

    return load


def by_pil(picture):
    """Prepare a picture as CLIP's authors do: bicubic on 8 bits to the shortest side, its middle, CLIP's mean and deviation."""
    height, width = picture.shape[:2]
    factor = SIDE / min(height, width)
    small = Image.fromarray(picture).resize((int(width * factor), int(height * factor)), Image.Resampling.BICUBIC)
    left, top = (small.width - SIDE) // 2, (small.height - SIDE) // 2
    middle = np.asarray(small.crop((left, top, left + SIDE, top + SIDE)), np.float64) / 255
    return ((middle - open_clip.OPENAI_DATASET_MEAN) / open_clip.OPENAI_DATASET_STD).transpose(2, 0, 1)


def test_features_are_those_that_transformers_compares(load, folder):
    clip, model = load(), T.CLIPModel.from_pretrained(folder)
    pixels = torch.tensor(np.stack([by_pil(picture) for picture in pictures()]), dtype=torch.float32)
    tokens = letters()(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(pixel_values=pixels, **tokens)
    images, texts = clip.images(pictures()), clip.texts(TEXTS)
    torch.testing.assert_close(images, expected.image_embeds, atol=1e-5, rtol=0)
    torch.testing.assert_close(texts, expected.text_embeds, atol=1e-5, rtol=0)
    torch.testing.assert_close(clip.scale * images @ texts.T, expected.logits_per_image, atol=1e-3, rtol=0)
    assert (images @ images.T).min() < 0.99  # or all of this would say nothing
    assert not images.requires_grad
    assert not texts.requires_grad


@pytest.mark.parametrize("size", [(40, 56), (57, 41), (SIDE, SIDE), (20, 16)])
def test_r052_pictures_are_prepared_as_clips_authors_do(load, folder, size):
    shown = pictures(2, *size)
    ours, expected = load().preprocess(shown).numpy(), np.stack([by_pil(picture) for picture in shown])
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    other = T.CLIPImageProcessor.from_pretrained(folder)([Image.fromarray(p) for p in shown], return_tensors="pt").pixel_values
    if min(size) > SIDE:  # torchvision, which "auto" would choose, shrinks in another way
        assert np.abs(other.numpy() - expected).max() > 1e-3


def test_samples_and_pictures_of_any_sizes_are_seen_alike(load, samples):
    clip, shown = load(), pictures()
    assert torch.equal(clip.images(samples(["", "", ""], list(shown))), clip.images(shown))
    mixed = [shown[0], pictures(1, 33, 70)[0]]
    assert torch.allclose(clip.images(mixed), torch.cat([clip.images([picture]) for picture in mixed]), atol=1e-6)


def test_a_picture_three_pixels_high_is_not_taken_for_its_channels(load):
    shown = pictures(1, 3, 40)
    np.testing.assert_allclose(load().preprocess(shown)[0].numpy(), by_pil(shown[0]), atol=1e-6)


@pytest.fixture(scope="module")
def words():
    """Make the tokenizer of the published CLIPs from the merges that open_clip ships."""
    file = Path(open_clip.__file__).with_name("bpe_simple_vocab_16e6.txt.gz")
    merges = gzip.decompress(file.read_bytes()).decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    known = open_clip.SimpleTokenizer().encoder
    vocab = {
        word.replace("_of_text>", "oftext|>").replace("<start", "<|start").replace("<end", "<|end"): known[word] for word in known
    }
    return T.CLIPTokenizer(vocab=vocab, merges=[tuple(merge.split()) for merge in merges], model_max_length=77)


PROMPTS = ["hello  world\n", 'A RED sign that says "Sale 50%"', "naïve café, l'été", "", LONG]


def test_r053_tokens_are_those_of_open_clip(load, words, tmp_path):
    large = network(vocab_size=49408, bos_token_id=49406, eos_token_id=2, pad_token_id=1)
    clip = load(model=save_clip(tmp_path, large, words), processor=str(tmp_path))
    with pytest.warns(UserWarning, match="judge"):
        ours = clip.tokenize(PROMPTS)
    expected = open_clip.tokenize(PROMPTS)
    for row in range(len(PROMPTS)):
        length = expected[row].argmax() + 1  # open_clip fills up with 0, transformers with the end token: nothing reads that
        assert torch.equal(ours[row, :length], expected[row, :length])
        assert (ours[row, length:] == 49407).all()


def test_r045_a_long_text_is_cut_keeps_its_end_and_is_spoken_of_once(load):
    clip = load()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ids = clip.tokenize([LONG, "sea"])
        features = clip.texts([LONG, "sea", LONG + " sky"])
    assert [ids.shape[1], *ids[0, [0, 75, 76]].tolist()] == [77, START, letters()("sea").input_ids[3], END]
    assert torch.allclose(features[0], clip.texts([" ".join(["sea"] * 25)])[0], atol=1e-6)  # 75 letters
    assert torch.allclose(features[0], features[2], atol=1e-6)
    assert not torch.allclose(features[0], features[1], atol=1e-2)
    said = 'reward "judge": 1 of 2 prompts are longer than the 77 tokens it reads, the longest by 525; the rest is cut off'
    assert [str(one.message) for one in caught] == [said]


def test_equal_texts_are_read_once_and_each_is_answered(load):
    clip, asked, seen = load(), ["a cat", "sea", "a cat", "a cat", "sea"], []
    spied = replace(clip, read=lambda ids: seen.append(len(ids)) or clip.read(ids))
    assert torch.allclose(spied.texts(asked), torch.cat([clip.texts([text]) for text in asked]), atol=1e-6)
    assert seen == [2]


def test_r060_scores_that_bfloat16_holds_equal_stay_apart(load, samples):
    cosines = np.array([0.2871, 0.2874, 0.2876, 0.2879])
    noise = np.random.default_rng(1).normal(size=(4, 1024))
    text = np.eye(1, 1024)[0]
    noise[:, 0] = 0
    noise *= np.sqrt(1 - cosines**2)[:, None] / np.linalg.norm(noise, axis=1, keepdims=True)
    features = torch.tensor(cosines[:, None] * text + noise).bfloat16()
    read = torch.tensor(text)[None].bfloat16()
    scores = replace(load(torch.bfloat16), see=lambda _: features, read=lambda _: read).similarity(
        samples([""] * 4, list(pictures(4)))
    )
    exact = features.double() @ torch.tensor(text) / features.double().norm(dim=1)
    assert scores.dtype == torch.float32
    assert torch.allclose(scores.double(), exact, atol=1e-7, rtol=0)
    assert len(scores.unique()) == 4 > len(scores.bfloat16().unique())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_network_of_low_precision_has_float32_features_and_the_exact_scale(load, dtype):
    clip, exact = load(dtype), load()
    assert clip.scale == exact.scale == pytest.approx(np.exp(4.6), rel=1e-6)
    for ours, expected in [(clip.images(pictures()), exact.images(pictures())), (clip.texts(TEXTS), exact.texts(TEXTS))]:
        assert ours.dtype == torch.float32
        assert torch.allclose(ours.norm(dim=1), torch.ones(len(ours)), atol=1e-6)
        assert torch.allclose(ours, expected, atol=0.05)
        assert not torch.equal(ours, expected)  # the network is of that precision


def damaged(folder, change):
    """Save a good CLIP and change one of its files."""
    save_clip(folder)
    change(folder)
    return str(folder)


def without_weights(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:999])


def without_projection(folder):
    weights = {name: tensor for name, tensor in network().state_dict().items() if name != "visual_projection.weight"}
    T.CLIPModel(network().config).save_pretrained(folder, state_dict=weights)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors"),
        (without_weights, "header"),
        (without_projection, "it lacks 1 of the weights, such as visual_projection.weight"),
        (lambda folder: (folder / "config.json").write_text(json.dumps({"model_type": "bert"})), 'of the type "bert", not "clip"'),
        (lambda folder: (folder / "config.json").write_text("{"), "JSON"),
        (lambda folder: (folder / "config.json").unlink(), "config.json"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_named_with_the_reason(load, tmp_path, change, why):
    path = damaged(tmp_path, change)
    with pytest.raises(PluginError) as error:
        load(model=path)
    assert str(error.value).startswith(f'reward "judge": "{path}" can\'t be loaded\n')
    assert why in str(error.value)
    assert "copy it again" in str(error.value)


def test_a_processor_without_its_file_is_named(load, tmp_path):
    path = damaged(tmp_path, lambda folder: (folder / "preprocessor_config.json").unlink())
    with pytest.raises(PluginError, match=r"can't be loaded\n  Can't load image processor"):
        load(processor=path)


def test_a_folder_that_does_not_exist_is_not_looked_for_on_a_hub(load, tmp_path):
    with pytest.raises(PluginError) as error:
        load(model=f"{tmp_path}/none")
    assert str(error.value) == f'reward "judge": "{tmp_path}/none" does not exist\n  correct the path, or name a model of the hub'


def test_a_hub_that_does_not_answer_is_said(load, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PluginError, match=r"(?s)\"nobody/nothing\" can't be loaded.*without a network, name a local copy"):
        load(model="nobody/nothing")


@pytest.mark.parametrize(
    ("model", "side", "why"),
    [
        ({"max_position_embeddings": 64}, SIDE, "the model reads 64 tokens, not 77"),
        ({"vocab_size": 400}, SIDE, "the tokenizer knows 514 tokens, the model 400"),
        ({"eos_token_id": 49407}, SIDE, "texts end with token 513, for the model with 49407"),
        ({}, 24, "images become 24 x 24 pixels, not 32 x 32"),
    ],
)
def test_r048_a_processor_that_does_not_fit_the_model_is_refused_when_it_is_loaded(load, tmp_path, model, side, why):
    path = save_clip(tmp_path, network(**model), side=side)
    with pytest.raises(PluginError) as error:
        load(model=path, processor=path)
    assert str(error.value) == f'reward "judge": the processor "{path}" does not fit the model "{path}"\n  {why}'


def test_processors_are_read_in_the_layout_of_transformers_5_too(load, folder, tmp_path):
    T.CLIPProcessor(T.CLIPImageProcessorPil.from_pretrained(folder), letters()).save_pretrained(tmp_path)
    assert not (tmp_path / "preprocessor_config.json").exists()
    assert torch.equal(load(processor=str(tmp_path)).preprocess(pictures()), load().preprocess(pictures()))
