"""ImageReward on a tiny random checkpoint, against its computation written out."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from vgrpo_core import PluginError, Samples
from vgrpo_rewards.blip import pixel_values
from vgrpo_rewards.imagereward import ImageReward

from . import blip_models as models

CPU = torch.device("cpu")
TEXTS = ["a cat", "", "two red signs", "a cat"]
LONG = " ".join(["cat"] * 16)  # 48 tokens and two more


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagereward")
    torch.save(models.checkpoint(), folder / "ImageReward.pt")
    models.save_tokenizer(folder / "bert")
    return folder


@pytest.fixture(scope="module")
def reward(folder):
    return lambda **options: ImageReward(**{"checkpoint": f"{folder}/ImageReward.pt", "tokenizer": f"{folder}/bert"} | options)


@pytest.fixture(scope="module")
def score(reward):
    return reward().load(CPU)


@pytest.fixture(scope="module")
def pictures():
    return list(np.random.default_rng(0).integers(0, 256, (4, 20, 28, 3), np.uint8))


def original(pictures, side):
    """Preprocess as the original does, with torchvision."""
    transforms = pytest.importorskip("torchvision.transforms")
    steps = [
        transforms.Resize(side, interpolation=transforms.InterpolationMode.BICUBIC),
        transforms.CenterCrop(side),
        transforms.ToTensor(),
        transforms.Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    ]
    return torch.stack([transforms.Compose(steps)(Image.fromarray(picture)) for picture in pictures])


@pytest.mark.parametrize("shape", [(20, 28), (28, 20), (12, 12), (7, 9), (13, 12), (225, 300)])
def test_r052_pixels_are_those_of_the_original(shape):
    images = np.random.default_rng(1).integers(0, 256, (2, *shape, 3), np.uint8)
    assert torch.equal(pixel_values(images, 12), original(images, 12))


def test_scores_are_those_of_the_original_computation(score, samples, pictures):
    expected = models.reference(models.checkpoint(), original(pictures, models.SIDE), TEXTS)
    found = score(samples(TEXTS, pictures)).values
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() < 1e-5
    assert expected.unique().numel() == 4  # image and text both count
    assert expected.std() > 0.05


def test_scores_are_standardised_and_not_bounded(score, samples, pictures):
    assert score(samples(TEXTS, pictures)).values.min() < 0


@pytest.mark.parametrize("batch", [1, 3])
def test_the_score_of_an_image_is_independent_of_its_batch(reward, score, samples, pictures, batch):
    together = score(samples(TEXTS, pictures)).values
    assert torch.allclose(reward(batch=batch).load(CPU)(samples(TEXTS, pictures)).values, together, atol=1e-5)
    alone = torch.cat([score(samples([text], [picture])).values for text, picture in zip(TEXTS, pictures, strict=True)])
    assert torch.allclose(alone, together, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_precisions_are_near_and_end_in_float32(reward, score, samples, pictures, dtype):
    exact, found = score(samples(TEXTS, pictures)).values, reward(dtype=dtype).load(CPU)(samples(TEXTS, pictures)).values
    assert found.dtype == torch.float32
    assert 0 < (found - exact).abs().max() < 0.5 * exact.std()


def test_r046_a_prompt_is_cut_to_35_tokens_and_this_is_said_once(reward, samples, pictures):
    assert ImageReward.text_limit == 35
    score = reward().load(CPU)
    with pytest.warns(UserWarning, match="1 of 2 prompts are longer than the 35 tokens it reads, the longest by 15"):
        found = score(samples([LONG, "cat"], pictures[:2])).values
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(score(samples([LONG, "cat"], pictures[:2])).values, found)
    expected = models.reference(models.checkpoint(), original(pictures[:2], models.SIDE), [LONG, "cat"])
    assert (found - expected).abs().max() < 1e-5
    assert len(models.token_ids(LONG, 99)) == 50


def test_case_is_disregarded_and_the_tokens_that_blip_adds_are_the_last_two(reward, score, samples, pictures):
    one = samples(["a cat"], pictures[:1])
    assert torch.equal(score(samples(["A Cat"], pictures[:1])).values, score(one).values)
    tokenizer = reward()._tokenizer(len(models.VOCABULARY) + 2)
    assert tokenizer("[DEC] a [ENC]").input_ids == [2, len(models.VOCABULARY), 5, len(models.VOCABULARY) + 1, 3]


def test_r048_a_tokenizer_of_another_vocabulary_is_refused_at_load(reward, tmp_path):
    models.save_tokenizer(tmp_path, models.VOCABULARY[:-1])
    with pytest.raises(PluginError) as error:
        reward(tokenizer=str(tmp_path)).load(CPU)
    count = len(models.VOCABULARY) + 2
    assert f"with [DEC] and [ENC] it has {count - 1} tokens, the checkpoint {count}" in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mlp.layers.2.bias": None}, "1 weights are missing and 0 unexpected, such as head.2.bias"),
        (
            {"blip.visual_encoder.blocks.0.norm1.weight": None},
            "1 weights are missing and 0 unexpected, such as vision.encoder.layers.0",
        ),
        ({"blip.itm_head.weight": torch.zeros(2)}, "0 weights are missing and 1 unexpected, such as blip.itm_head.weight"),
        ({"blip.visual_encoder.patch_embed.proj.weight": None}, "vision.embeddings.patch_embedding.weight"),
        ({"blip.visual_encoder.norm.bias": torch.zeros(2)}, "size mismatch|Error"),
    ],
)
def test_a_checkpoint_with_other_weights_is_refused(reward, tmp_path, change, message):
    weights = {name: value for name, value in (models.checkpoint() | change).items() if value is not None}
    torch.save(weights, tmp_path / "other.pt")
    with pytest.raises(PluginError, match=message) as error:
        reward(checkpoint=str(tmp_path / "other.pt")).load(CPU)
    assert str(tmp_path / "other.pt") in str(error.value)


@pytest.mark.parametrize("content", [None, b"", b"not a checkpoint"])
def test_a_checkpoint_that_is_missing_or_damaged_is_named(reward, tmp_path, content):
    path = tmp_path / "ImageReward.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PluginError, match=str(path)):
        reward(checkpoint=str(path)).load(CPU)


class Trap:
    def __reduce__(self):
        return print, ("executed",)


def test_nothing_in_a_checkpoint_is_executed(reward, tmp_path, capsys):
    torch.save(models.checkpoint() | {"trap": Trap()}, tmp_path / "trap.pt")
    with pytest.raises(PluginError):
        reward(checkpoint=str(tmp_path / "trap.pt")).load(CPU)
    assert "executed" not in capsys.readouterr().out


def test_a_tokenizer_that_is_missing_is_named(reward, tmp_path):
    with pytest.raises(PluginError, match=str(tmp_path / "none")):
        reward(tokenizer=str(tmp_path / "none")).load(CPU)


def test_what_comes_from_a_hub_is_listed_and_what_is_here_is_not(reward):
    assert [asset.name for asset in ImageReward().assets()] == ["THUDM/ImageReward/ImageReward.pt", "google-bert/bert-base-uncased"]
    assert list(reward().assets()) == []


def test_images_keep_their_values(score, samples, pictures):
    one = samples(["a cat"], pictures[:1])
    before = one.images.clone()
    score(one)
    assert torch.equal(one.images, before)
    assert isinstance(one, Samples)
