"""The reward `ocr`: the score around an engine, and the real engine on pictures of known text."""

import json

import numpy as np
import pytest
import torch

from vgrpo_core import Prompt
from vgrpo_rewards import OCR
from vgrpo_rewards.ocr import score

BLANK = np.full((64, 64, 3), 255, np.uint8)
WORDS = ["sign", "able", "fox", "jump", "quit", "zero", "many", "bird"]


@pytest.fixture(scope="module")
def word():
    pytest.importorskip("rapidocr")
    return OCR(mode="word", threads=2).load(torch.device("cpu"))


@pytest.fixture(scope="module")
def scene():
    pytest.importorskip("rapidocr")
    return OCR(threads=2).load(torch.device("cpu"))


@pytest.fixture(scope="module")
def signs(draw, samples):
    inks = [(205, 30, 30), (30, 60, 205)]
    pictures = [draw(24, 64, [((64 - 13 * len(text)) // 2, 2, text, 22, inks[i % 2])]) for i, text in enumerate(WORDS)]
    return samples([Prompt("a sign", {"text": text}) for text in WORDS], pictures)


def reads(*found):
    """Make an engine that finds `found` whatever it is shown."""
    return lambda images: [list(found)] * len(images)


def test_the_lines_of_a_scene_are_read_as_one_text(samples):
    assert score(samples(['"Hello World"'], [BLANK]), reads(("HELLO", 0.9), ("world", 0.8))).values.tolist() == [1.0]


def test_nothing_read_scores_zero_and_is_not_missing(samples):
    assert score(samples(['"SALE"'], [BLANK]), reads()).values.tolist() == [0.0]


def test_a_prompt_without_a_text_to_write_is_missing_and_its_image_is_not_read(samples):
    seen = []

    def read(images):
        seen.append(images.copy())
        return [[("SALE", 1.0)] for _ in images]

    pictures = [np.full((8, 8, 3), value, np.uint8) for value in (1, 2, 3)]
    scores = score(samples(["a dog's hat", 'a "sale"', ""], pictures), read).values
    assert scores.isnan().tolist() == [True, False, True]
    assert scores[1] == 1
    assert [images.tolist() for images in seen] == [[pictures[1].tolist()]]


def test_text_below_the_least_confidence_does_not_count(samples):
    one = samples(['"sale"'], [BLANK])
    lines = reads(("s", 0.49), ("sal", 0.5))
    assert score(one, lines, 0.5).values.tolist() == [0.75]
    assert score(one, lines, 0.0).values.tolist() == [0.5]  # "ssal" is two edits away


def test_the_evidence_is_what_was_read_and_what_was_wanted(samples):
    both = samples(['"Big Sale"', "a cat"], [BLANK, BLANK])
    found = score(both, reads(("BIG", 0.9), ("?", 0.1), ("salt", 0.8)), 0.5)
    assert json.loads(json.dumps(found.evidence)) == [
        {"read": "BIG salt", "unsure": "?", "wanted": "Big Sale"},
        {"read": None, "unsure": None, "wanted": None},
    ]


def test_scores_are_float32_and_leave_the_images_alone(samples):
    one = samples(['"sale"'], [BLANK])
    before = one.images.clone()
    assert score(one, reads(("sale", 1.0))).values.dtype == torch.float32
    assert torch.equal(one.images, before)


def test_rendered_words_are_read_exactly(word, signs):
    assert word(signs).values.tolist() == [1.0] * len(WORDS)


def test_a_wrong_letter_costs_its_share(word, draw, samples):
    assert word(samples([Prompt("", {"text": "bird"})], [draw(24, 64, [(6, 2, "bind", 22, (20, 20, 20))])])).values.tolist() == [
        0.75
    ]


def test_two_words_in_a_scene_are_read_exactly(scene, draw, samples):
    picture = draw(256, 384, [(40, 60, "HELLO", 48, (200, 0, 0)), (120, 150, "world", 48, (0, 0, 200))])
    asked = ['a wall with "Hello" and “World”', 'a wall with "hello"', 'a wall with "hello wall"', "a wall"]
    scores = scene(samples(asked, [picture] * 4)).values
    # from "helloworld" to "hellowall": two letters replaced, one dropped
    assert scores[:3].tolist() == pytest.approx([1.0, 1.0, 1 - 3 / 9])
    assert scores[3].isnan()


@pytest.mark.parametrize("mode", ["word", "scene"])
def test_a_blank_image_scores_zero(mode, request, samples):
    assert request.getfixturevalue(mode)(samples(['"SALE"'], [BLANK])).values.tolist() == [0.0]


@pytest.mark.parametrize("mode", ["word", "scene"])
def test_the_score_of_an_image_is_independent_of_its_batch(mode, request, draw, samples):
    function = request.getfixturevalue(mode)
    pictures = [draw(96, 192, [(20, 30, text, 40, (20, 90, 20))]) for text in ("stop", "exit", "stap", "")]
    prompts = ['"stop"', '"exit"', '"stop"', '"stop"']
    together = function(samples(prompts, pictures))
    single = [function(samples([p], [x])) for p, x in zip(prompts, pictures, strict=True)]
    backwards = function(samples(prompts[::-1], pictures[::-1]))
    assert together.values.tolist() == [one.values.item() for one in single] == backwards.values.tolist()[::-1]
    assert together.evidence == [one.evidence[0] for one in single] == backwards.evidence[::-1]
    assert together.values.unique().tolist() == [0.0, 0.75, 1.0]


@pytest.mark.parametrize("mode", ["word", "scene"])
def test_a_batch_without_anything_to_read_is_missing(mode, request, samples):
    assert request.getfixturevalue(mode)(samples(["a cat"], [BLANK])).values.isnan().all()
