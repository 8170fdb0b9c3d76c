"""A sign shows its word in its colour, unless it was made faulty."""

import numpy as np
import pytest
import torch
from PIL import ImageDraw

from vgrpo_core import Prompt, Samples
from vgrpo_glyphs import build
from vgrpo_glyphs.render import PALETTE, Sign, corrupt, render
from vgrpo_rewards.ocr import OCR
from vgrpo_rewards.pixel_color import PALETTE as REWARDED
from vgrpo_rewards.pixel_color import PixelColor

SIGNS = [Sign(word, colour) for word, colour in zip(("ship", "lamp", "cat", "moon", "desk", "fire"), PALETTE, strict=True)]
DRAWS = 4000


def rng(seed=0):
    return np.random.default_rng(seed)


def samples(signs):
    """What rewards are given of clean pictures of some signs."""
    source = rng()
    pixels = np.stack([render(sign, source) for sign in signs])
    prompts = tuple(Prompt(sign.word, {"text": sign.word, "color": sign.colour}) for sign in signs)
    return Samples(prompts, torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255)


def test_the_palette_is_that_of_the_reward():
    assert PALETTE == REWARDED


def test_a_picture_follows_from_the_sign_and_the_generator():
    one, two, other = (render(SIGNS[0], rng(seed), 0.5) for seed in (0, 0, 1))
    assert one.shape == (build.HEIGHT, build.WIDTH, 3)
    assert one.dtype == np.uint8
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_the_word_can_be_read():
    scores = OCR(mode="word").load(torch.device("cpu"))(samples(SIGNS * 2)).values
    assert scores.mean() > 0.9


def test_the_ink_has_the_colour_asked_for():
    scores = PixelColor().load(torch.device("cpu"))(samples(SIGNS))
    assert scores.min() > 0.8
    shifted = [Sign(sign.word, other.colour) for sign, other in zip(SIGNS, SIGNS[1:] + SIGNS[:1], strict=True)]
    asked = samples(SIGNS).prompts
    wrong = PixelColor().load(torch.device("cpu"))(Samples(asked, samples(shifted).images))
    assert wrong.max() < 0.6


def test_no_letter_is_cut_off():
    for image in (render(Sign("wwww", "black"), rng(seed)) for seed in range(20)):
        frame = np.concatenate([image[[0, -1]].reshape(-1, 3), image[:, [0, -1]].reshape(-1, 3)])
        assert frame.min() > 150


def test_without_noise_nothing_is_corrupted(monkeypatch):
    strokes = counted(monkeypatch)
    source = rng()
    assert all(corrupt(sign, source, 0.0) == sign for sign in SIGNS * 200)
    for sign in SIGNS * 50:
        render(sign, source)
    assert not strokes


def counted(monkeypatch):
    """Keep what is drawn as lines."""
    strokes = []
    monkeypatch.setattr(ImageDraw.ImageDraw, "line", lambda self, *args, **kwargs: strokes.append(args))
    return strokes


@pytest.mark.parametrize("noise", [0.2, 0.5, 1.0])
def test_the_share_of_faulty_signs_is_as_described(noise):
    """Each letter is replaced with probability 1/2, by itself in 1 of 26 cases; the ink by its own colour in 1 of 6."""
    source, sign = rng(), Sign("word", "red")
    drawn = [corrupt(sign, source, noise) for _ in range(DRAWS)]
    unchanged = (1 - 0.5 * 25 / 26) ** 4
    assert np.mean([other.word != "word" for other in drawn]) == pytest.approx(noise * (1 - unchanged), abs=0.03)
    assert np.mean([other.colour != "red" for other in drawn]) == pytest.approx(0.7 * noise * 5 / 6, abs=0.03)
    assert {len(other.word) for other in drawn} == {4}
    letters = np.mean([sum(a != b for a, b in zip(other.word, "word", strict=True)) for other in drawn])
    assert letters == pytest.approx(4 * noise * 0.5 * 25 / 26, abs=0.06)


def test_strokes_cross_as_many_pictures_as_described(monkeypatch):
    strokes, source, crossed = counted(monkeypatch), rng(), []
    for _ in range(1000):
        before = len(strokes)
        render(SIGNS[0], source, 0.5)
        crossed.append(len(strokes) - before)
    assert set(crossed) == {0, 1, 2}
    assert np.mean(np.array(crossed) > 0) == pytest.approx(0.35, abs=0.05)
