"""The reward `clipscore`, against transformers and open_clip called directly."""

import math
import sys

import numpy as np
import open_clip
import pytest
import torch
import transformers as T
from PIL import Image

from vgrpo_core import PluginError
from vgrpo_rewards.clipscore import ClipScore

from .clip_models import LONG, OPEN, letters, save_clip, save_open_clip

CPU = torch.device("cpu")
TEXTS = ["a cat", "a red dog on a hill", "a cat", ""]
PICTURES = np.random.default_rng(3).integers(0, 256, (4, 40, 56, 3), np.uint8)
PREPROCESS = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4], "resize_mode": "squash", "interpolation": "bilinear"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Save a model of each library; return how each is named."""
    folder = tmp_path_factory.mktemp("clipscore")
    return {"transformers": save_clip(folder / "clip"), "open_clip": save_open_clip(folder / "open", **PREPROCESS)}


@pytest.fixture
def judged(samples):
    return samples(TEXTS, list(PICTURES))


def by_transformers(model, texts):
    network = T.CLIPModel.from_pretrained(model)
    pixels = T.CLIPImageProcessorPil.from_pretrained(model)([Image.fromarray(p) for p in PICTURES], return_tensors="pt")
    tokens = letters()(texts, padding=True, truncation=True, max_length=77, return_tensors="pt")
    images = network.get_image_features(pixels.pixel_values).pooler_output
    return images, network.get_text_features(**tokens).pooler_output


def by_open_clip(model, texts):
    network, prepare = open_clip.create_model_from_pretrained(model)
    pixels = torch.stack([prepare(Image.fromarray(p)) for p in PICTURES])
    return network.encode_image(pixels), network.encode_text(open_clip.get_tokenizer(model)(texts))


LIBRARIES = {"transformers": by_transformers, "open_clip": by_open_clip}


@torch.no_grad()
def directly(library, models, texts=TEXTS):
    """Compare in float64 the features that the library itself gives."""
    return torch.cosine_similarity(*(features.double() for features in LIBRARIES[library](models[library], texts)))


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_score_is_the_cosine_without_any_factor(library, models, judged):
    scores = ClipScore(model=models[library]).load(CPU)(judged).values
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), directly(library, models), atol=1e-5, rtol=0)
    assert scores.std() > 0.01


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_score_of_an_image_is_independent_of_its_batch(library, models, judged):
    score = ClipScore(model=models[library], batch=3).load(CPU)
    alone = torch.cat([score(one).values for one in judged.split(1)])
    torch.testing.assert_close(score(judged).values, alone, atol=1e-6, rtol=0)


@pytest.mark.parametrize("library", LIBRARIES)
def test_r045_a_prompt_of_two_hundred_words_scores_as_its_beginning(library, models, samples):
    score = ClipScore(model=models[library]).load(CPU)
    longer = {"transformers": 602 - 77, "open_clip": 202 - 77}[library]  # letters there, words here
    with pytest.warns(UserWarning, match=f'reward "clipscore": 1 of 1 prompts .* the 77 tokens it reads, the longest by {longer};'):
        scores = score(samples([LONG] * 4, list(PICTURES))).values
    torch.testing.assert_close(scores.double(), directly(library, models, [LONG] * 4), atol=1e-5, rtol=0)
    kept = {"transformers": 25, "open_clip": 75}[library]
    beginning = score(samples([" ".join(["sea"] * kept)] * 4, list(PICTURES))).values
    torch.testing.assert_close(scores, beginning, atol=1e-6, rtol=0)


@pytest.mark.parametrize("library", LIBRARIES)
def test_r060_in_bfloat16_only_the_network_is_rounded(library, models, judged):
    scores = ClipScore(model=models[library], dtype="bfloat16").load(CPU)(judged).values
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), directly(library, models), atol=0.03, rtol=0)
    assert (scores - scores.bfloat16()).abs().max() > 1e-4  # bfloat16 arithmetic would have left nothing


@pytest.mark.parametrize("change", ["none", "weights", "tokenizer", "context"])
def test_a_model_of_open_clip_that_cannot_be_used_is_refused(change, tmp_path, monkeypatch):
    model = save_open_clip(tmp_path / "open")
    if change == "none":
        model += "where"
    elif change == "weights":
        (tmp_path / "open" / "open_clip_model.safetensors").write_bytes(b"0123456789")
    elif change == "tokenizer":
        letters().save_pretrained(tmp_path / "open")
        monkeypatch.setitem(OPEN["text_cfg"], "hf_tokenizer_name", "letters")
        save_open_clip(tmp_path / "other")
        (tmp_path / "other" / "open_clip_config.json").rename(tmp_path / "open" / "open_clip_config.json")
    else:
        monkeypatch.setitem(OPEN["text_cfg"], "context_length", 64)
        model = save_open_clip(tmp_path / "short")
    why = {
        "none": 'openwhere" does not exist\n  correct the path',
        "weights": "open\" can't be loaded\n  .*\n  it is damaged or of another kind",
        "tokenizer": "the model does not use the tokenizer of CLIP",
        "context": "the model reads 64 tokens, not 77",
    }
    with pytest.raises(PluginError, match=f'reward "clipscore": .*{why[change]}'):
        ClipScore(model=model).load(CPU)


def test_without_open_clip_its_models_say_what_to_install(models, monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(PluginError, match=r'(?s)needs open_clip.*pip install "vgrpo\[clip\]"'):
        ClipScore(model=models["open_clip"]).load(CPU)
    assert callable(ClipScore(model=models["transformers"]).load(CPU))


def test_what_comes_from_a_hub_is_listed_once_and_folders_are_not(models):
    assert [(asset.name, asset.size) for asset in ClipScore().assets()] == [("openai/clip-vit-large-patch14", 1.71)]
    (other,) = ClipScore(model="hf-hub:apple/DFN5B-CLIP-ViT-H-14-378").assets()
    assert (other.name, other.licence) == ("apple/DFN5B-CLIP-ViT-H-14-378", "unknown")
    assert math.isnan(other.size)
    assert [list(ClipScore(model=model).assets()) for model in models.values()] == [[], []]
