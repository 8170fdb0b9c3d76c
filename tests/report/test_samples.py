from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from vgrpo_cli import pictures
from vgrpo_core import Prompt, Samples
from vgrpo_core.events import Evaluated
from vgrpo_core.scoring import Judge
from vgrpo_report import samples
from vgrpo_report.commands import write

WORDS = [("red", "SALE"), ("blue", "OPEN"), ("green", "TAXI"), ("red", "EXIT")]
DRAWN = [("red", "SALE"), ("red", "QRST"), ("green", "TAXI"), ("green", "EXAM")]


def sign(color, word):
    """Draw what a model should have drawn."""
    image = Image.new("RGB", (192, 72), "white")
    ImageDraw.Draw(image).text((20, 8), word, color, ImageFont.load_default(52))
    return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float() / 255


@pytest.fixture
def judged(made):
    """A run whose last evaluation was scored by the real OCR and the real measure of colour."""
    pytest.importorskip("rapidocr")
    from vgrpo_rewards.ocr import OCR
    from vgrpo_rewards.pixel_color import PixelColor

    made.rewards.append({"use": "pixel_color", "label": "color", "weight": 0.5, "scale": 1.0})
    folder = made(labels=("ocr", "color"))
    prompts = tuple(Prompt(f'a {color} sign that says "{word}"', metadata={"color": color}) for color, word in WORDS)
    images = torch.stack(list(itertools.starmap(sign, DRAWN)))
    pictures.save(Evaluated(4, {}, prompts, images), folder)
    judges = {"ocr": OCR(mode="word"), "color": PixelColor(field="color")}
    found = {
        label: Judge(label, label, plugin.load(torch.device("cpu"))).examine(Samples(prompts, images))
        for label, plugin in judges.items()
    }
    scores = {label: each.values.tolist() for label, each in found.items()}
    texts = [prompt.text for prompt in prompts]
    samples.save(folder, 4, texts, scores, {label: each.evidence for label, each in found.items()}, (192, 72))
    return folder, scores


def test_best_and_worst_are_shown_with_what_the_real_judges_said(judged, page, tmp_path):
    folder, scores = judged
    assert scores["ocr"][0] == scores["ocr"][2] == 1 and scores["ocr"][1] < 0.5
    write([folder], tmp_path / "page.html")
    found = page(tmp_path / "page.html")
    cards = [" ".join(each.text.split()) for each in found.all("li", "extremes")]
    shown = [next(number for number, (_, word) in enumerate(WORDS) if f'says "{word}"' in card) for card in cards]
    total = [scores["ocr"][row] + scores["color"][row] for row in range(4)]
    assert set(shown[:2]) == {0, 2} and set(shown[2:]) == {1, 3}
    assert min(total[row] for row in shown[:2]) > max(total[row] for row in shown[2:])
    assert f'ocr 1.000 read "SALE", unsure "", wanted "SALE" color {scores["color"][0]:.3f}' in cards[shown.index(0)]
    assert 'wanted "OPEN"' in cards[shown.index(1)]


def test_the_file_holds_scores_and_evidence_as_json_with_null_for_missing(judged):
    folder, scores = judged
    told = json.loads((folder / "samples" / "000004.json").read_text())
    assert told["scores"] == scores
    assert told["evidence"]["ocr"][0] == {"read": "SALE", "unsure": "", "wanted": "SALE"}
    assert "color" not in told["evidence"]  # it has none
    path = samples.save(folder, 5, ["a", "b"], {"ocr": [math.nan, 1.0]}, {}, (8, 8))
    assert json.loads(path.read_text())["scores"] == {"ocr": [None, 1.0]}


def test_evidence_that_json_cannot_hold_leaves_no_file(tmp_path):
    with pytest.raises(TypeError):
        samples.save(tmp_path, 5, ["a"], {"ocr": [1.0]}, {"ocr": [{"read": object()}]}, (8, 8))
    assert not (tmp_path / "samples").exists()


def test_samples_are_ranked_by_weighted_scores_in_deviations_from_their_mean():
    generator = np.random.default_rng(3)
    first, second = generator.normal(20, 3, 12), generator.normal(0, 0.01, 12)
    second[[1, 5]] = np.nan
    factors = {"first": 0.5, "second": -2.0, "lost": 1.0}
    scores = {"first": first.tolist(), "second": [None if math.isnan(value) else value for value in second]}
    totals = []
    for row in range(12):
        total = 0.5 * (first[row] - np.mean(first)) / np.std(first)
        if not math.isnan(second[row]):
            total -= 2.0 * (second[row] - np.nanmean(second)) / np.nanstd(second)
        totals.append(total)
    assert samples.ranked(scores, factors, 12) == sorted(range(12), key=lambda row: totals[row], reverse=True)


def test_samples_that_nothing_could_judge_are_left_out():
    assert samples.ranked({"ocr": [0.1, None, 0.9]}, {"ocr": 1.0}, 3) == [2, 0]


def test_boxes_of_detectors_are_drawn_where_they_were_found(made, painted, page, tmp_path):
    from vgrpo_rewards.detectors import Detection

    found = Detection("traffic light", 0.93, (10.0, 20.0, 50.0, 90.0)).evidence()
    folder = made()
    painted(folder, 4, ["one", "two"])
    evidence = {"ocr": [{"clauses": ["1 of 1 <b>"], "found": [found]}, {"clauses": [], "found": []}]}
    samples.save(folder, 4, ["one", "two"], {"ocr": [1.0, 0.0]}, evidence, (100, 200))
    write([folder], tmp_path / "page.html")
    taken = page(tmp_path / "page.html")
    [box] = taken.all("rect", "extremes")
    assert [float(box.attributes[key]) for key in ("x", "y", "width", "height")] == [10, 20, 40, 70]
    assert "viewbox" in box.inside[-1].attributes and box.inside[-1].attributes["viewbox"] == "0 0 100 200"
    said = [each.text for each in taken.all("dd", "extremes", **{"class": "said"})]
    assert said == ['clauses "1 of 1 <b>", found traffic light 0.93', "clauses none, found none"]


def test_scores_of_another_evaluation_are_not_shown(made, painted, page, tmp_path):
    folder = made()
    painted(folder, 4, ["one", "two"])
    samples.save(folder, 4, ["two", "one"], {"ocr": [1.0, 0.0]}, {}, (8, 8))
    write([folder], tmp_path / "page.html")
    assert "extremes" not in {each.attributes.get("id") for each in page(tmp_path / "page.html").elements}
