"""The prompt source `geneval`."""

import os
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from vgrpo_core import Prompt
from vgrpo_prompts.geneval import CLASSES, COLORS, RELATIONS, GenEval, write

TAGS = ("single_object", "two_object", "counting", "colors", "position", "color_attr")
COUNTS = {"two": 2, "three": 3, "four": 4}


def texts(**options):
    return [prompt.text for prompt in GenEval(**options).load()]


def words(prompt):
    """Forget the order of the objects, and case."""
    return tuple(sorted(prompt.text.lower().split()))


def parsed(tag, text):
    """Read a prompt with GenEval's plurals back into what it asks for."""
    rest = text.removeprefix("a photo of ")
    if tag == "counting":
        number, _, plural = rest.partition(" ")
        name = next(plural.removesuffix(ending) for ending in ("s", "es") if plural.removesuffix(ending) in CLASSES)
        return [{"class": name, "count": COUNTS[number]}]
    if tag == "position":
        thing, relation, ground = re.fullmatch(f"(.*) ({'|'.join(RELATIONS)}) (.*)", rest).groups()
        return [parsed_thing(ground), parsed_thing(thing) | {"position": [relation, 0]}]
    return [parsed_thing(thing) for thing in rest.split(" and ")]


def parsed_thing(text):
    article, _, name = text.partition(" ")
    assert article == ("an" if name[0] in "aeiou" else "a")
    if name in CLASSES:
        return {"class": name, "count": 1}
    color, _, name = name.partition(" ")
    assert color in COLORS
    return {"class": name, "count": 1, "color": color}


def test_the_classes_are_those_of_coco_as_geneval_calls_them():
    detection = pytest.importorskip("torchvision").models.detection
    coco = detection.FasterRCNN_MobileNet_V3_Large_320_FPN_Weights.DEFAULT.meta["categories"]
    called = {"mouse": "computer mouse", "remote": "tv remote", "keyboard": "computer keyboard"}
    assert list(CLASSES) == [called.get(name, name) for name in coco if name not in ("__background__", "N/A")]


@pytest.mark.parametrize(
    ("tag", "include", "text"),
    [
        ("single_object", [{"class": "umbrella", "count": 1}], "a photo of an umbrella"),
        ("two_object", [{"class": "skis", "count": 1}, {"class": "apple", "count": 1}], "a photo of a skis and an apple"),
        ("colors", [{"class": "orange", "count": 1, "color": "blue"}], "a photo of a blue orange"),
        ("colors", [{"class": "bus", "count": 1, "color": "orange"}], "a photo of an orange bus"),
        (
            "position",
            [{"class": "oven", "count": 1}, {"class": "cat", "count": 1, "position": ["left of", 0]}],
            "a photo of a cat left of an oven",
        ),
        (
            "color_attr",
            [{"class": "tv", "count": 1, "color": "pink"}, {"class": "tie", "count": 1, "color": "orange"}],
            "a photo of a pink tv and an orange tie",
        ),
    ],
)
def test_a_row_is_written_as_the_benchmark_writes_it(tag, include, text):
    assert write(tag, include) == write(tag, include, "benchmark") == text


@pytest.mark.parametrize(
    ("name", "count", "english", "benchmark"),
    [
        ("dog", 2, "two dogs", "two dogs"),
        ("wine glass", 2, "two wine glasses", "two wine glasses"),
        ("bus", 3, "three buses", "three buses"),
        ("vase", 4, "four vases", "four vases"),
        ("bench", 2, "two benches", "two benchs"),
        ("toothbrush", 3, "three toothbrushes", "three toothbrushs"),
        ("knife", 4, "four knives", "four knifes"),
        ("skis", 3, "three skis", "three skises"),
        ("scissors", 2, "two scissors", "two scissorses"),
        ("sheep", 2, "two sheep", "two sheeps"),
        ("person", 3, "three people", "three persons"),
        ("computer mouse", 2, "two computer mice", "two computer mouses"),
    ],
)
def test_plurals_are_english_or_those_of_the_benchmark(name, count, english, benchmark):
    include = [{"class": name, "count": count}]
    assert write("counting", include) == f"a photo of {english}"
    assert write("counting", include, "benchmark") == f"a photo of {benchmark}"


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_metadata_say_what_the_text_says(split):
    for prompt in GenEval(count=1200, split=split, plurals="benchmark").load():
        tag = prompt.metadata["tag"]
        include = parsed(tag, prompt.text)
        expected = {"tag": tag, "include": include}
        if tag == "counting":
            expected["exclude"] = [{"class": include[0]["class"], "count": include[0]["count"] + 1}]
        assert prompt.metadata == expected


def test_two_objects_differ_and_so_do_their_colours_and_no_person_is_coloured():
    for prompt in GenEval(count=1500, tags=("two_object", "position", "color_attr", "colors")).load():
        include = prompt.metadata["include"]
        assert len({clause["class"] for clause in include}) == len(include) == (1 if prompt.metadata["tag"] == "colors" else 2)
        colors = [clause["color"] for clause in include if "color" in clause]
        assert len(set(colors)) == len(colors)
        assert not colors or all(clause["class"] != "person" for clause in include)


@settings(max_examples=6, deadline=None)
@given(st.integers(), st.integers())
def test_r044_train_and_test_share_no_prompt_whatever_their_seeds_the_order_of_objects_and_case(one, other):
    train = set(map(words, GenEval(count=1200, seed=one).load()))
    test = set(map(words, GenEval(count=1200, seed=other, split="test").load()))
    assert train
    assert test
    assert not train & test


def test_two_objects_of_the_test_are_in_no_pair_of_the_training_prompts():
    def pairs(split):
        prompts = GenEval(count=3000, split=split, tags=("two_object", "position", "color_attr")).load()
        return {frozenset(clause["class"] for clause in prompt.metadata["include"]) for prompt in prompts}

    assert not pairs("train") & pairs("test")


@pytest.mark.parametrize(
    ("tag", "distinct"),
    [("single_object", 80), ("counting", 80 * 3), ("colors", 79 * 10), ("two_object", 80 * 79), ("position", 80 * 79 * 4)],
)
def test_the_two_splits_together_are_every_prompt_of_a_kind(tag, distinct):
    assert len({text for split in ("train", "test") for text in texts(count=distinct, split=split, tags=(tag,))}) == distinct


@pytest.mark.parametrize("tag", ["single_object", "counting", "colors", "two_object", "position"])
def test_every_prompt_comes_once_before_one_comes_again(tag):
    size = len(set(texts(count=4000, split="test", tags=(tag,))))
    shown = texts(count=2 * size, split="test", tags=(tag,))
    assert size < 4000
    assert len(set(shown[:size])) == size
    assert set(Counter(shown).values()) == {2}


def test_about_an_eighth_is_for_the_test():
    for tag, most in {"colors": 790, "two_object": 80 * 79}.items():
        share = len(set(texts(count=most, split="test", tags=(tag,)))) / most
        assert 0.09 < share < 0.16


@pytest.mark.parametrize("tags", [TAGS, ("position", "colors"), ("counting",)])
def test_the_kinds_have_equal_shares_in_every_part(tags):
    kinds = [prompt.metadata["tag"] for prompt in GenEval(count=60, tags=tags).load()]
    assert Counter(kinds) == dict.fromkeys(tags, 60 // len(tags))
    assert set(kinds[: len(tags)]) == set(tags)


def test_relations_and_numbers_are_about_equally_frequent():
    prompts = GenEval(count=1200, tags=("position",)).load()
    found = Counter(prompt.metadata["include"][1]["position"][0] for prompt in prompts)
    assert set(found) == set(RELATIONS)
    assert max(abs(n - 300) for n in found.values()) < 4 * (1200 * 0.25 * 0.75) ** 0.5


def test_a_seed_is_another_choice_and_the_first_prompts_are_those_of_a_smaller_count():
    assert texts(count=600, seed=1) != texts(count=600, seed=2)
    assert GenEval(count=50).load() == GenEval(count=600).load()[:50]


def test_every_process_yields_the_same_prompts():
    code = "from vgrpo_prompts.geneval import GenEval; print(GenEval(count=60, seed=3).load())"
    command = [sys.executable, "-c", code]
    outputs = [subprocess.check_output(command, text=True, env=os.environ | {"PYTHONHASHSEED": seed}) for seed in ("1", "2")]
    assert outputs == [f"{GenEval(count=60, seed=3).load()}\n"] * 2


def test_prompts_do_not_share_what_they_ask_for():
    first, again = (GenEval(count=2, split="test", tags=("counting",)).load()[0] for _ in range(2))
    first.metadata["include"][0]["count"] = 9
    assert again != first
    assert isinstance(again, Prompt)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tags": ()}, "at least 1 item"),
        ({"tags": ("colors", "colors")}, "a tag is named twice"),
        ({"tags": ("colours",)}, "'single_object', 'two_object'"),
        ({"count": 0}, "greater than or equal to 1"),
        ({"split": "validation"}, "'train' or 'test'"),
    ],
)
def test_a_mistaken_option_is_refused_with_the_reason(options, message):
    with pytest.raises(ValidationError) as error:
        GenEval(**options)
    assert message in str(error.value)
