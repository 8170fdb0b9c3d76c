"""The reward `hpsv2`, against open_clip called directly."""

from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from vgrpo_core import PluginError
from vgrpo_rewards.hpsv2 import HPSv2, padding

from .clip_models import LONG, SIDE, open_network, register

CPU = torch.device("cpu")
TEXTS = ["a cat", "a red dog on a hill", "a cat", ""]
PICTURES = np.random.default_rng(3).integers(0, 256, (4, 40, 56, 3), np.uint8)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Save a checkpoint as the authors did, in half precision under "state_dict"."""
    folder = tmp_path_factory.mktemp("hpsv2")
    weights = {name: tensor.half() for name, tensor in open_network().state_dict().items()}
    torch.save({"state_dict": weights}, folder / "HPS.pt")
    return {"version": "2.1", "checkpoint": str(folder / "HPS.pt"), "architecture": register(folder)}


@pytest.fixture
def judged(samples):
    return samples(TEXTS, list(PICTURES))


def prepared(picture, side=SIDE):
    """Resize the float image with torch alone, and put it on black with numpy."""
    image = torch.tensor(picture).permute(2, 0, 1)[None].float() / 255
    factor = side / max(picture.shape)
    size = [round(picture.shape[0] * factor), round(picture.shape[1] * factor)]
    image = torch.nn.functional.interpolate(image, size, mode="bicubic", antialias=True)[0].numpy()
    square, top, left = np.zeros((3, side, side)), (side - size[0]) // 2, (side - size[1]) // 2
    square[:, top : top + size[0], left : left + size[1]] = image
    return (square - np.reshape(open_clip.OPENAI_DATASET_MEAN, (3, 1, 1))) / np.reshape(open_clip.OPENAI_DATASET_STD, (3, 1, 1))


@torch.no_grad()
def directly(options, texts=TEXTS):
    """Let open_clip load the checkpoint, and compare its features in float64."""
    network = open_clip.create_model(options["architecture"], pretrained=options["checkpoint"]).eval()
    pixels = torch.tensor(np.stack([prepared(picture) for picture in PICTURES])).float()
    tokens = open_clip.get_tokenizer(options["architecture"])(texts)
    return torch.cosine_similarity(network.encode_image(pixels).double(), network.encode_text(tokens).double())


def test_the_score_is_the_cosine_without_any_factor(options, judged):
    scores = HPSv2(**options).load(CPU)(judged).values
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), directly(options), atol=1e-5, rtol=0)
    assert scores.std() > 0.01


@pytest.mark.parametrize("size", [(40, 56), (57, 41), (64, 64), (SIDE, SIDE), (20, SIDE), (9, 14)])
def test_r052_pictures_are_fitted_whole_on_black(size):
    picture = np.random.default_rng(1).integers(0, 256, (*size, 3), np.uint8)
    ours = padding(SIDE)(picture)
    assert ours.shape == (3, SIDE, SIDE)
    np.testing.assert_allclose(ours.numpy(), prepared(picture), atol=1e-5)


def test_the_preprocessing_is_that_of_open_clip_but_for_its_rounding_to_8_bits():
    steps = np.linspace(20, 235, 48 * 80 * 3).reshape(48, 80, 3).astype(np.uint8)
    theirs = open_clip.image_transform(SIDE, is_train=False, resize_mode="longest")(Image.fromarray(steps))
    assert (padding(SIDE)(steps) - theirs).abs().max() < 0.02  # half a step of 255, divided by the deviation, is 0.008
    cropped = open_clip.image_transform(SIDE, is_train=False)(Image.fromarray(steps))
    assert (padding(SIDE)(steps) - cropped).abs().max() > 1


def test_the_score_of_an_image_is_independent_of_its_batch(options, judged):
    score = HPSv2(**options, batch=3).load(CPU)
    alone = torch.cat([score(one).values for one in judged.split(1)])
    torch.testing.assert_close(score(judged).values, alone, atol=1e-6, rtol=0)


def test_r045_a_prompt_of_two_hundred_words_scores_as_its_beginning(options, samples):
    score = HPSv2(**options).load(CPU)
    with pytest.warns(
        UserWarning, match='reward "hpsv2": 1 of 1 prompts are longer than the 77 tokens it reads, the longest by 125;'
    ):
        scores = score(samples([LONG] * 4, list(PICTURES))).values
    torch.testing.assert_close(scores.double(), directly(options, [LONG] * 4), atol=1e-5, rtol=0)
    beginning = score(samples([" ".join(["sea"] * 75)] * 4, list(PICTURES))).values
    torch.testing.assert_close(scores, beginning, atol=1e-6, rtol=0)


def test_r060_in_bfloat16_only_the_network_is_rounded(options, judged):
    scores = HPSv2(**options, dtype="bfloat16").load(CPU)(judged).values
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), directly(options), atol=0.03, rtol=0)
    assert (scores - scores.bfloat16()).abs().max() > 1e-4  # bfloat16 arithmetic would have left nothing


@pytest.mark.parametrize("version", [None, "2", 2.1, "2.2"])
def test_r055_without_a_version_there_is_no_score(version):
    with pytest.raises(ValidationError) as error:
        HPSv2.model_validate({} if version is None else {"version": version})
    assert version is None or "'2.0' or '2.1'" in str(error.value)


@pytest.mark.parametrize(("version", "file"), [("2.0", "HPS_v2_compressed.pt"), ("2.1", "HPS_v2.1_compressed.pt")])
def test_r055_each_version_has_its_own_checkpoint(options, judged, monkeypatch, version, file):
    def download(repository, name):
        assert (repository, name) == ("xswu/HPSv2", file)
        return options["checkpoint"]

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert [asset.name for asset in HPSv2(version=version).assets()] == [f"xswu/HPSv2/{file}"]
    score = HPSv2(version=version, architecture=options["architecture"]).load(CPU)
    assert torch.equal(score(judged).values, HPSv2(**options).load(CPU)(judged).values)


@pytest.mark.parametrize("architecture", ["ViT-H-14-quickgelu", "ViT-H-41", "tiny-narrow"])
def test_r054_the_weights_go_with_their_own_architecture_only(options, architecture, tmp_path):
    register(tmp_path, "tiny-narrow", embed_dim=8)
    why = {
        "ViT-H-14-quickgelu": r"another activation than the weights were made for\n  leave `architecture` out",
        "ViT-H-41": 'open_clip knows no architecture "ViT-H-41"; did you mean "ViT-H-1',
        "tiny-narrow": r"can't be loaded\n.*size mismatch",
    }
    with pytest.raises(PluginError, match=f'reward "hpsv2": .*{why[architecture]}'):
        HPSv2(**options | {"architecture": architecture}).load(CPU)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda weights: {name: weights[name] for name in weights if name != "visual.proj"}, "Missing key"),
        (lambda weights: weights | {"visual.extra": torch.zeros(1)}, "Unexpected key"),
        (lambda weights: weights | {"visual.proj": torch.zeros(32, 8)}, "size mismatch"),
        (lambda weights: np.float64, "Weights only"),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused(options, tmp_path, change, why):
    torch.save({"state_dict": change(open_network().state_dict())}, tmp_path / "other.pt")
    with pytest.raises(PluginError, match=rf'(?s)reward "hpsv2": "{tmp_path}/other.pt" can\'t be loaded\n.*{why}.*damaged'):
        HPSv2(**options | {"checkpoint": f"{tmp_path}/other.pt"}).load(CPU)


def test_half_a_file_is_refused(options, tmp_path):
    whole = Path(options["checkpoint"]).read_bytes()
    (tmp_path / "half.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PluginError, match=r"half\.pt\" can't be loaded"):
        HPSv2(**options | {"checkpoint": f"{tmp_path}/half.pt"}).load(CPU)


def test_a_checkpoint_on_this_machine_is_not_listed(options):
    assert list(HPSv2(**options).assets()) == []
    assert (HPSv2.requires, HPSv2.extra, HPSv2.text_limit) == (("open_clip",), "vgrpo[clip]", 77)
