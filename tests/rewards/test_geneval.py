"""The reward `geneval`: what it makes of a detector's findings, and real tiny networks from disk to the score."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor, ImageDraw
from pydantic import ValidationError

from vgrpo_core import PluginError, Prompt
from vgrpo_rewards.clauses import COLORS
from vgrpo_rewards.coco import CLASSES
from vgrpo_rewards.colours import by_pixels
from vgrpo_rewards.detectors import Detection, Detector
from vgrpo_rewards.geneval import GenEval, Probe

from .clip_models import save_clip
from .detector_models import rt_detr, save, sure_of

CPU = torch.device("cpu")
BLANK = np.full((64, 96, 3), 0x99, np.uint8)
KINDS = {"red": "dog", "blue": "cat", "green": "tv"}  # which class a square of that colour is to the detector below


def paint(*squares):
    """Draw squares of 16 pixels: (colour, left, top)."""
    image = Image.fromarray(BLANK)
    for color, left, top in squares:
        ImageDraw.Draw(image).rectangle((left, top, left + 15, top + 15), fill=ImageColor.getrgb(color))
    return np.asarray(image)


def detector(confidence=0.95, labels=CLASSES):
    """Make a detector that finds the squares of each colour that has a class, one object for each 16 columns that they fill."""

    def find(images, above):
        found = [[one for color in KINDS for one in squares(image, color)] for image in images]
        return [[one for one in objects if one.confidence > above] for objects in found]

    def squares(image, color):
        mask = (image == ImageColor.getrgb(color)).all(-1)
        for left in range(0, image.shape[1], 16):
            part = np.zeros_like(mask)
            part[:, left : left + 16] = mask[:, left : left + 16]
            if part.any():
                yield Detection(KINDS[color], confidence - left / 1e4, Image.fromarray(part).getbbox(), part)

    return Detector(frozenset(labels), find)


def ask(*include, tag="", exclude=()):
    return Prompt("a photo", {"tag": tag, "include": list(include), "exclude": list(exclude)})


@pytest.fixture
def judge(samples):
    """Return judge(prompts, pictures, detector, **options): the values and the evidence."""

    def judge(prompts, pictures, found_by=None, **options):
        scores = GenEval(**options).score(samples(prompts, pictures), found_by or detector(), by_pixels)
        return scores.values.tolist(), scores.evidence

    return judge


DOG, RED_DOG = {"class": "dog", "count": 1}, {"class": "dog", "count": 1, "color": "red"}
CAT_RIGHT = {"class": "cat", "count": 1, "position": ["right of", 0]}


def test_every_tag_is_judged_from_the_picture(judge):
    scenes = [
        (ask(DOG, tag="single_object"), paint(("red", 0, 0))),
        (ask(DOG, {"class": "tv", "count": 1}, tag="two_object"), paint(("red", 0, 0), ("green", 48, 0))),
        (ask({"class": "dog", "count": 3}, tag="counting"), paint(("red", 0, 0), ("red", 32, 0), ("red", 64, 0))),
        (ask(RED_DOG, tag="colors"), paint(("red", 0, 0))),
        (ask(DOG, CAT_RIGHT, tag="position"), paint(("red", 0, 0), ("blue", 64, 0))),
        (ask(RED_DOG, {"class": "cat", "count": 1, "color": "blue"}, tag="color_attr"), paint(("red", 0, 0), ("blue", 64, 0))),
    ]
    prompts, pictures = zip(*scenes, strict=True)
    for rule in ("strict", "graded", "benchmark"):
        assert judge(prompts, pictures, rule=rule)[0] == [1.0] * 6
        assert judge(prompts, [BLANK] * 6, rule=rule)[0] == [0.0] * 6


def test_r043_two_dogs_for_three_are_nothing_or_two_thirds_and_both_are_shown(judge):
    prompt, picture = ask({"class": "dog", "count": 3}), paint(("red", 0, 8), ("red", 48, 8))
    for rule, score in {"strict": 0.0, "graded": 2 / 3}.items():
        values, evidence = judge([prompt], [picture], rule=rule)
        assert values == pytest.approx([score])
        assert [(one["class"], one["box"]) for one in evidence[0]["found"]] == [("dog", [0, 8, 16, 24]), ("dog", [48, 8, 64, 24])]
        assert [one["confidence"] for one in evidence[0]["found"]] == [0.95, 0.95 - 48 / 1e4]
        assert evidence[0]["clauses"] == [
            {"class": "dog", "count": 3, "found": 2, "holds": False, "parts": {"count": pytest.approx(2 / 3)}}
        ]


def test_a_prompt_without_clauses_is_missing_and_its_image_is_not_looked_at(judge):
    shown = []

    def find(images, above):
        shown.extend(images)
        return detector().find(images, above)

    pictures = [paint(("red", 0, 0)), paint(("red", 16, 0))]
    values, evidence = judge([Prompt("a dog"), ask(DOG)], pictures, Detector(frozenset(CLASSES), find))
    assert math.isnan(values[0])
    assert values[1] == 1
    assert evidence[0] == {}
    assert len(shown) == 1
    assert (shown[0] == pictures[1]).all()
    assert math.isnan(judge([Prompt("a dog")], pictures[:1], Detector(frozenset(), None))[0][0])


def test_counting_needs_more_confidence(judge):
    picture, three = paint(("red", 0, 0), ("red", 32, 0), ("red", 64, 0)), {"class": "dog", "count": 3}
    prompts = [ask(three), ask(three, tag="counting")]
    assert judge(prompts, [picture] * 2, detector(0.89))[0] == [1.0, 0.0]
    assert judge(prompts, [picture] * 2, detector(0.92))[0] == [1.0, 1.0]
    assert judge(prompts, [picture] * 2, detector(0.28))[0] == [0.0, 0.0]
    assert judge(prompts, [picture] * 2, detector(0.28), confidence=0.2, counting_confidence=0.25)[0] == [1.0, 1.0]


def test_no_more_objects_of_a_class_are_looked_at_than_said(judge):
    row = paint(*(("red", left, 0) for left in range(0, 96, 16)))
    prompts = [ask({"class": "dog", "count": count}) for count in (4, 6)]
    assert judge(prompts, [row] * 2, most=4)[0] == [1.0, 0.0]
    assert judge(prompts, [row] * 2)[0] == [0.0, 1.0]


def test_colours_are_named_where_they_decide_and_nowhere_else(judge, samples):
    asked = []

    def name(crops):
        asked.extend((crop.word, crop.pixels.shape, crop.mask is not None) for crop in crops)
        return ["red"] * len(crops)

    prompts = [ask(DOG), ask(RED_DOG), ask(RED_DOG), ask({"class": "computer mouse", "count": 1, "color": "red"})]
    pictures = [paint(("red", 0, 0)), paint(("red", 0, 0), ("blue", 32, 0)), paint(("red", 0, 0), ("red", 32, 0)), BLANK]
    scores = GenEval().score(samples(prompts, pictures), detector(), name)
    assert asked == [("dog", (16, 16, 3), True)]  # the third has a dog too many, the fourth none
    assert scores.values.tolist() == [1, 1, 0, 0]
    assert [one.get("color") for one in scores.evidence[1]["found"]] == [None, "red"]  # cat and dog


def test_evidence_is_ready_for_json(judge):
    prompts = [ask(RED_DOG, CAT_RIGHT, exclude=[{"class": "dog", "count": 2}])]
    _, evidence = judge(prompts, [paint(("red", 0, 0), ("blue", 32, 0))], rule="benchmark")
    assert json.loads(json.dumps(evidence)) == list(evidence)


def test_scores_are_float32_and_independent_of_the_batch(judge, samples):
    prompts = [ask(DOG), ask(RED_DOG, CAT_RIGHT), ask({"class": "dog", "count": 2}, tag="counting"), Prompt("")]
    pictures = [paint(("red", 0, 0)), paint(("red", 0, 0), ("blue", 64, 0)), paint(("red", 0, 0)), BLANK]
    together = GenEval(rule="graded").score(samples(prompts, pictures), detector(), by_pixels)
    alone = [judge([prompt], [picture], rule="graded") for prompt, picture in zip(prompts, pictures, strict=True)]
    assert together.values.dtype == torch.float32
    assert together.values.tolist() == pytest.approx([values[0] for values, _ in alone], nan_ok=True, abs=0)
    assert list(together.evidence) == [evidence[0] for _, evidence in alone]


def test_a_class_that_the_detector_does_not_know_is_an_error_and_not_a_zero(judge):
    narrow = detector(labels=("dog", "cat"))
    for prompt in (ask({"class": "zebra", "count": 1}), ask(DOG, exclude=[{"class": "zebra", "count": 1}])):
        with pytest.raises(PluginError, match='does not know the class "zebra"'):
            judge([prompt], [BLANK], narrow)


def test_an_unknown_class_names_the_nearest(judge):
    with pytest.raises(PluginError, match='unknown class "gira"; did you mean "giraffe"'):
        judge([ask({"class": "gira", "count": 1})], [BLANK])


# Real networks from disk


@pytest.fixture(scope="module")
def cats(tmp_path_factory):
    """Return the folder of an RT-DETR that is sure of a cat at each of its 10 queries."""
    return save(tmp_path_factory.mktemp("cats"), "rt_detr", sure_of(rt_detr(), "cat", 2.5))


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("clip"))


def options(folder, **others):
    return GenEval.model_validate({"detector": {"use": "transformers", "model": folder}, **others})


def test_from_disk_to_the_score(cats, clip, samples):
    prompts = [ask({"class": "cat", "count": count, "color": "red"}) for count in (10, 9)] + [ask(DOG), Prompt("")]
    pictures = list(np.random.default_rng(0).integers(0, 256, (4, 64, 96, 3), np.uint8))
    score = options(cats, clip=clip, rule="graded", batch=2).load(CPU)
    with torch.no_grad():
        values, evidence = score(samples(prompts, pictures))
    named = [one["color"] for one in evidence[0]["found"]]
    assert [one["class"] for one in evidence[0]["found"]] == ["cat"] * 10
    assert all(one["confidence"] == pytest.approx(1 / (1 + math.exp(-2.5)), abs=1e-5) for one in evidence[0]["found"])
    assert set(named) <= set(COLORS)
    assert values[0].item() == pytest.approx((1 + named.count("red") / 10) / 2)
    assert values[1].item() == pytest.approx((8 / 9 + 0) / 2)
    assert values[2] == 0
    assert values[3].isnan()
    with torch.no_grad():
        alone = [score(samples([prompt], [picture])).values.item() for prompt, picture in zip(prompts, pictures, strict=True)]
    assert values.tolist() == pytest.approx(alone, nan_ok=True)


@pytest.fixture
def picture(tmp_path):
    """Return the file of a real photograph of a cat."""
    data = pytest.importorskip("skimage.data")
    Image.fromarray(data.chelsea()).save(tmp_path / "cat.png")
    return str(tmp_path / "cat.png")


def test_r041_a_detector_with_random_weights_fails_its_probe(tmp_path, picture):
    path = save(tmp_path / "random", "rt_detr", sure_of(rt_detr(), "cat", -5.0))
    probe = {"image": picture, "finds": "cat"}
    with pytest.raises(PluginError, match=r"(?s)finds no cat on .*cat\.png.*it finds nothing"):
        options(path, colors="pixels", probe=probe).load(CPU)


def test_a_detector_that_finds_the_class_passes_its_probe(cats, picture):
    assert callable(options(cats, colors="pixels", probe={"image": picture, "finds": "cat"}).load(CPU))
    with pytest.raises(PluginError, match=r"(?s)finds no dog on .*cat\.png.*it finds cat"):
        options(cats, colors="pixels", probe={"image": picture, "finds": "dog"}).load(CPU)
    with pytest.raises(PluginError, match=r"none\.png"):
        options(cats, colors="pixels", probe={"image": "/none.png", "finds": "dog"}).load(CPU)


# Options


def test_the_detector_is_a_table_that_chooses_its_options():
    read = GenEval.model_validate_json('{"detector": {"use": "yolo", "model": "mine.pt", "size": 320}}', strict=True)
    assert (read.detector.use, read.detector.model, read.detector.size) == ("yolo", "mine.pt", 320)
    assert GenEval.model_validate_json(read.model_dump_json(exclude_none=True), strict=True) == read
    with pytest.raises(ValidationError, match="'transformers', 'torchvision', 'yolo'"):
        GenEval.model_validate({"detector": {"use": "yola"}})
    with pytest.raises(ValidationError, match="weights"):
        GenEval.model_validate({"detector": {"use": "yolo", "weights": "mine.pt"}})
    with pytest.raises(ValidationError, match='unknown class "kat"; did you mean "cat"'):
        Probe(image="a.png", finds="kat")


def test_assets_are_what_these_options_read():
    assert [asset.name for asset in GenEval().assets()] == ["PekingU/rtdetr_r50vd", "openai/clip-vit-large-patch14"]
    assert [asset.name for asset in GenEval(colors="pixels").assets()] == ["PekingU/rtdetr_r50vd"]
