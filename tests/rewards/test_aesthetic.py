"""The reward `aesthetic`, against transformers and plain matrix products."""

import numpy as np
import pytest
import torch
import transformers as T
from PIL import Image

from vgrpo_core import PluginError
from vgrpo_rewards.aesthetic import Aesthetic

from .clip_models import LONG, network, save_clip

CPU = torch.device("cpu")
PICTURES = np.random.default_rng(3).integers(0, 256, (4, 40, 56, 3), np.uint8)
SIZES = [768, 1024, 128, 64, 16, 1]


@pytest.fixture(scope="module")
def head():
    """Draw weights under the names that the published head has."""
    generator = torch.Generator().manual_seed(0)
    layers = zip((0, 2, 4, 6, 7), SIZES, SIZES[1:], strict=False)
    drawn = {}
    for layer, inputs, outputs in layers:
        drawn[f"layers.{layer}.weight"] = torch.randn(outputs, inputs, generator=generator) / inputs**0.5
        drawn[f"layers.{layer}.bias"] = torch.randn(outputs, generator=generator)
    return drawn


@pytest.fixture(scope="module")
def files(tmp_path_factory, head):
    folder = tmp_path_factory.mktemp("aesthetic")
    torch.save(head, folder / "head.pth")
    return {"model": save_clip(folder / "clip", network(768)), "head": str(folder / "head.pth")}


@pytest.fixture
def judged(samples):
    return samples([""] * 4, list(PICTURES))


@torch.no_grad()
def by_hand(files, head):
    """Multiply the normalised features of transformers with the head's matrices in float64."""
    pixels = T.CLIPImageProcessorPil.from_pretrained(files["model"])([Image.fromarray(p) for p in PICTURES], return_tensors="pt")
    features = T.CLIPModel.from_pretrained(files["model"]).get_image_features(pixels.pixel_values).pooler_output.double()
    features /= features.square().sum(1, keepdim=True).sqrt()
    for layer in (0, 2, 4, 6, 7):
        features = features @ head[f"layers.{layer}.weight"].double().T + head[f"layers.{layer}.bias"].double()
    return features[:, 0]


def test_the_score_is_the_head_on_the_normalised_features(files, head, judged):
    scores = Aesthetic(**files).load(CPU)(judged).values
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), by_hand(files, head), atol=1e-5, rtol=0)
    assert scores.std() > 0.01


def test_the_prompt_does_not_count_and_is_not_read(files, judged, samples, recwarn):
    score = Aesthetic(**files).load(CPU)
    assert torch.equal(score(judged).values, score(samples([LONG, "b", "c", "d"], list(PICTURES))).values)
    assert not [one for one in recwarn if "tokens" in str(one.message)]
    assert Aesthetic.text_limit is None


def test_the_score_of_an_image_is_independent_of_its_batch(files, judged):
    score = Aesthetic(**files, batch=3).load(CPU)
    alone = torch.cat([score(one).values for one in judged.split(1)])
    torch.testing.assert_close(score(judged).values, alone, atol=1e-5, rtol=0)


def test_scoring_twice_gives_the_same_for_there_is_no_dropout(files, judged):
    score = Aesthetic(**files).load(CPU)
    assert torch.equal(score(judged).values, score(judged).values)


def test_r060_in_bfloat16_only_the_clip_is_rounded(files, head, judged):
    scores = Aesthetic(**files, dtype="bfloat16").load(CPU)(judged).values
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), by_hand(files, head), atol=0.03, rtol=0)
    assert (scores - scores.bfloat16()).abs().max() > 1e-4  # bfloat16 arithmetic would have left nothing


def without(head, key):
    return {name: value for name, value in head.items() if name != key}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda head: without(head, "layers.7.bias"), "Missing key"),
        (lambda head: head | {"layers.9.weight": torch.zeros(1)}, "Unexpected key"),
        (lambda head: head | {"layers.0.weight": torch.zeros(1024, 512)}, "size mismatch"),
        (lambda head: list(head), "it holds a list, not a state dict"),
        (lambda head: {"weights": np.float64}, "[Uu]nsupported|[Ww]eights only"),
    ],
)
def test_a_head_of_another_kind_is_refused(files, head, tmp_path, change, why):
    torch.save(change(head), tmp_path / "other.pth")
    with pytest.raises(PluginError, match=rf'(?s)reward "aesthetic": "{tmp_path}/other.pth" can\'t be loaded\n.*({why}).*damaged'):
        Aesthetic(model=files["model"], head=f"{tmp_path}/other.pth").load(CPU)


def test_a_head_that_does_not_exist_is_named(files, tmp_path):
    with pytest.raises(PluginError, match=r'"\./nowhere.pth" does not exist\n  correct the path'):
        Aesthetic(model=files["model"], head="./nowhere.pth").load(CPU)


def test_the_head_comes_from_the_hub_where_it_is_not_a_file(files, head, judged, monkeypatch):
    def download(repository, file):
        assert (repository, file) == ("trl-lib/ddpo-aesthetic-predictor", "aesthetic-model.pth")
        return files["head"]

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    scores = Aesthetic(model=files["model"]).load(CPU)(judged).values
    torch.testing.assert_close(scores.double(), by_hand(files, head), atol=1e-5, rtol=0)


def test_a_hub_that_does_not_answer_is_said(files, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(PluginError, match=r"(?s)nothing/at/all.pth\" can't be loaded.*without a network, name a local copy"):
        Aesthetic(model=files["model"], head="nothing/at/all.pth").load(CPU)


def test_a_clip_of_another_width_is_refused_when_it_is_loaded(files, tmp_path):
    narrow = save_clip(tmp_path)
    with pytest.raises(PluginError) as error:
        Aesthetic(model=narrow, head=files["head"]).load(CPU)
    assert str(error.value) == f'reward "aesthetic": "{narrow}" has 16 features, the head reads 768\n  name a CLIP ViT-L/14'


def test_what_comes_from_the_hub_is_listed_and_files_are_not(files):
    listed = ["openai/clip-vit-large-patch14", "trl-lib/ddpo-aesthetic-predictor/aesthetic-model.pth"]
    assert [asset.name for asset in Aesthetic().assets()] == listed
    assert list(Aesthetic(**files).assets()) == []
