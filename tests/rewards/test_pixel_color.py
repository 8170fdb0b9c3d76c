"""The reward `pixel_color` on pictures whose ink is known."""

import statistics

import numpy as np
import pytest
import torch

from vgrpo_core import PluginError, Prompt
from vgrpo_rewards import PixelColor
from vgrpo_rewards.pixel_color import PALETTE, ink

WHITE = (255, 255, 255)


def picture(colour, ground=WHITE, pixels=40):
    """Draw 20 x 25 pixels, of which 40 are 8 %."""
    image = np.full((20, 25, 3), ground, np.uint8)
    rows, columns = np.divmod(np.arange(pixels), 10)
    image[rows + 8, columns + 7] = colour
    return image


@pytest.fixture(scope="module")
def judge(samples):
    function = PixelColor().load(torch.device("cpu"))
    return lambda colours, pictures: function(samples([Prompt("", {"color": c} if c else {}) for c in colours], pictures))


@pytest.mark.parametrize("ground", [WHITE, (0, 90, 90)])
@pytest.mark.parametrize("name", PALETTE)
def test_ink_of_the_named_colour_scores_one(judge, name, ground):
    assert judge([name], [picture(PALETTE[name], ground)]).item() == pytest.approx(1, abs=1e-5)


def test_ink_off_by_sixty_scores_seven_tenths(judge):
    assert judge(["red"], [picture((145, 30, 30))]).item() == pytest.approx(1 - 60 / 200, abs=1e-5)


def test_too_little_ink_is_mixed_with_the_ground(judge):
    # half of the 40 farthest pixels are white: the mean of (20, 135, 40) and white is off by half their difference
    off = np.linalg.norm(np.array([235, 120, 215]) / 2)
    assert judge(["green"], [picture(PALETTE["green"], pixels=20)]).item() == pytest.approx(1 - off / 200, abs=1e-5)


def test_a_distance_of_two_hundred_or_more_scores_zero(judge):
    assert judge(["black", "blue"], [picture(WHITE), picture((205, 30, 30))]).tolist() == [0, 0]


def test_strokes_that_cross_the_border_do_not_change_the_ground(judge):
    image = picture(PALETTE["blue"])
    image[:, 3:6] = image[5:7] = PALETTE["blue"]
    assert judge(["blue"], [image]).item() == pytest.approx(1, abs=1e-5)


def test_a_prompt_without_a_colour_is_missing(judge):
    scores = judge(["red", None], [picture(PALETTE["red"])] * 2)
    assert scores.isnan().tolist() == [False, True]


def test_the_field_of_the_metadata_is_an_option(samples):
    score = PixelColor(field="ink").load(torch.device("cpu"))
    prompts = [Prompt("", {"ink": "red", "color": "blue"}), Prompt("", {"color": "red"})]
    scores = score(samples(prompts, [picture(PALETTE["red"])] * 2))
    assert scores[0].item() == pytest.approx(1, abs=1e-5)
    assert scores[1].isnan()


def test_an_unknown_colour_is_an_error_with_the_known_ones(judge):
    with pytest.raises(PluginError) as error:
        judge(["purpel"], [picture(WHITE)])
    assert 'unknown colour "purpel"' in str(error.value)
    assert 'did you mean "purple"?' in str(error.value)
    assert "known colours: red, green, blue, black, orange, purple" in str(error.value)


def test_the_ink_is_that_of_a_plain_loop():
    images = torch.rand(3, 3, 9, 11, generator=torch.Generator().manual_seed(0))
    for image, found in zip(images, ink(images), strict=True):
        pixels = {(y, x): image[:, y, x].tolist() for y in range(9) for x in range(11)}
        border = [value for (y, x), value in pixels.items() if y in (0, 8) or x in (0, 10)]
        ground = [statistics.median(value[c] for value in border) for c in range(3)]
        farthest = sorted(pixels.values(), key=lambda v: -sum((a - b) ** 2 for a, b in zip(v, ground, strict=True)))[:7]
        assert found.tolist() == pytest.approx([statistics.mean(v[c] for v in farthest) for c in range(3)], abs=1e-6)


def test_a_batch_scores_like_its_images_one_by_one(judge):
    rng = np.random.default_rng(0)
    pictures = [picture(rng.integers(0, 256, 3), rng.integers(0, 256, 3)) for _ in range(6)]
    together = judge(list(PALETTE), pictures)
    assert together.dtype == torch.float32
    alone = [judge([name], [image]).item() for name, image in zip(PALETTE, pictures, strict=True)]
    assert together.tolist() == pytest.approx(alone, abs=1e-6)


def test_the_embedded_model_draws_with_the_same_colours():
    from vgrpo_glyphs import render

    assert render.PALETTE == PALETTE
