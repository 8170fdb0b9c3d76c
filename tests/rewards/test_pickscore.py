"""The reward `pickscore`, against transformers called directly."""

import numpy as np
import pytest
import torch
import transformers as T
from PIL import Image

from vgrpo_core import Asset
from vgrpo_rewards.pickscore import PickScore

from .clip_models import LONG, letters, network, processor

CPU = torch.device("cpu")
TEXTS = ["a cat", "a red dog on a hill", "a cat", "", "sea"]
PICTURES = np.random.default_rng(3).integers(0, 256, (5, 40, 56, 3), np.uint8)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Save the weights in one folder and what prepares their input in another, as the hub has them."""
    weights, prepares = tmp_path_factory.mktemp("weights"), tmp_path_factory.mktemp("processor")
    network().save_pretrained(weights)
    processor().save_pretrained(prepares)
    letters().save_pretrained(prepares)
    return {"model": str(weights), "processor": str(prepares)}


@pytest.fixture
def judged(samples):
    return samples(TEXTS, list(PICTURES))


def by_the_card(folders, texts):
    """Score as the model card does: exp(logit_scale) times text @ image of the normalised features; the last of it in float64."""
    model = T.CLIPModel.from_pretrained(folders["model"])
    pixels = T.CLIPImageProcessorPil.from_pretrained(folders["processor"])(
        [Image.fromarray(p) for p in PICTURES], return_tensors="pt"
    )
    tokens = letters()(texts, padding=True, truncation=True, max_length=77, return_tensors="pt")
    with torch.no_grad():
        images = model.get_image_features(pixels.pixel_values).pooler_output.double()
        read = model.get_text_features(**tokens).pooler_output.double()
    cosines = torch.nn.functional.cosine_similarity(images, read)
    return np.exp(4.6) * cosines


def test_the_score_is_the_factor_of_the_model_times_the_cosine(folders, judged):
    scores = PickScore(**folders).load(CPU)(judged).values
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), by_the_card(folders, TEXTS), atol=1e-3, rtol=0)
    assert scores.std() > 1


def test_the_score_is_the_diagonal_of_the_models_own_logits(folders, judged):
    model = T.CLIPModel.from_pretrained(folders["model"])
    inputs = T.CLIPProcessor(T.CLIPImageProcessorPil.from_pretrained(folders["processor"]), letters())(
        text=TEXTS, images=[Image.fromarray(p) for p in PICTURES], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        logits = model(**inputs).logits_per_image.diagonal()
    torch.testing.assert_close(PickScore(**folders).load(CPU)(judged).values, logits, atol=1e-3, rtol=0)


@pytest.mark.parametrize("size", [1, 2, 32])
def test_the_score_of_an_image_is_independent_of_its_batch(folders, judged, samples, size):
    score = PickScore(**folders, batch=size).load(CPU)
    alone = torch.cat([score(one).values for one in judged.split(1)])
    torch.testing.assert_close(score(judged).values, alone, atol=1e-4, rtol=0)
    backwards = score(samples(TEXTS[::-1], list(PICTURES[::-1]))).values.flip(0)
    torch.testing.assert_close(backwards, alone, atol=1e-4, rtol=0)


def test_r045_a_prompt_of_two_hundred_words_scores_as_its_beginning(folders, samples):
    score = PickScore(**folders).load(CPU)
    with pytest.warns(UserWarning, match='reward "pickscore": 1 of 1 prompts are longer than the 77 tokens'):
        whole = score(samples([LONG] * 5, list(PICTURES))).values
    beginning = score(samples([" ".join(["sea"] * 25)] * 5, list(PICTURES))).values
    torch.testing.assert_close(whole, beginning, atol=1e-4, rtol=0)
    torch.testing.assert_close(whole.double(), by_the_card(folders, [LONG] * 5), atol=1e-3, rtol=0)


def test_r060_in_bfloat16_only_the_network_is_rounded(folders, judged):
    scores = PickScore(**folders, dtype="bfloat16").load(CPU)(judged).values
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), by_the_card(folders, TEXTS), atol=3, rtol=0)
    assert (scores - scores.bfloat16()).abs().max() > 1e-4  # bfloat16 arithmetic would have left nothing


def test_what_comes_from_the_hub_is_listed_and_folders_are_not(folders):
    assert PickScore().assets() == [
        Asset("yuvalkirstain/PickScore_v1", 3.94, "none stated"),
        Asset("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", 0.004, "MIT"),
    ]
    assert PickScore(**folders).assets() == []
    assert [asset.name for asset in PickScore(model=folders["model"]).assets()] == ["laion/CLIP-ViT-H-14-laion2B-s32B-b79K"]
