"""The prompt source `words`."""

import os
import subprocess
import sys
from collections import Counter
from hashlib import blake2b
from itertools import combinations

import pytest
from pydantic import ValidationError

from vgrpo_core import PluginError, Prompt
from vgrpo_prompts import Words

SPLITS = {"train": 1456, "validation": 103, "test": 105}
COLORS = ("red", "green", "blue", "black", "orange", "purple")


def texts(**options):
    return [prompt.metadata["text"] for prompt in Words(**options).load()]


@pytest.mark.parametrize(("split", "size"), SPLITS.items())
def test_a_split_has_its_size_and_no_word_twice(split, size):
    assert len(texts(split=split)) == len(set(texts(split=split))) == size


def test_no_word_is_in_two_splits():
    assert not any(set(texts(split=a)) & set(texts(split=b)) for a, b in combinations(SPLITS, 2))


def test_the_split_of_a_word_is_its_hash_alone():
    first_byte = {word: blake2b(word.encode(), digest_size=2).digest()[0] % 16 for split in SPLITS for word in texts(split=split)}
    assert set(texts(split="test")) == {word for word, value in first_byte.items() if value == 0}
    assert set(texts(split="validation")) == {word for word, value in first_byte.items() if value == 1}


def test_a_prompt_names_the_word_and_the_colour_that_its_metadata_hold():
    for prompt in Words(split="test").load():
        word, color = prompt.metadata["text"], prompt.metadata["color"]
        assert prompt == Prompt(f'a {color} sign that says "{word}"', {"text": word, "color": color})


def test_the_words_fit_the_signs_of_the_embedded_model():
    assert all(word.isascii() and word.islower() and word.isalpha() and 3 <= len(word) <= 4 for word in texts())


def test_every_process_yields_the_same_prompts():
    code = "from vgrpo_prompts import Words; print(Words(count=50, split='train').load())"
    command = [sys.executable, "-c", code]
    outputs = [subprocess.check_output(command, text=True, env=os.environ | {"PYTHONHASHSEED": seed}) for seed in ("1", "2")]
    assert outputs == [f"{Words(count=50).load()}\n"] * 2


def test_count_takes_the_first_prompts():
    assert Words(count=7).load() == Words().load()[:7]


def test_the_first_prompts_are_a_fair_sample_of_the_alphabet():
    order = {word: place for place, word in enumerate(sorted(texts()))}
    places = [order[word] for word in texts(count=200)]
    assert 0.4 < sum(places) / len(places) / len(order) < 0.6
    assert places != sorted(places)


def test_colours_are_about_equally_frequent():
    found = Counter(prompt.metadata["color"] for prompt in Words().load())
    assert set(found) == set(COLORS)
    assert max(abs(n - 1456 / 6) for n in found.values()) < 3 * (1456 * (1 / 6) * (5 / 6)) ** 0.5


def test_every_color_yields_each_word_in_every_colour():
    pairs = {(p.metadata["text"], p.metadata["color"]) for p in Words(split="test", every_color=True).load()}
    assert pairs == {(word, color) for word in texts(split="test") for color in COLORS}
    assert len(Words(split="test", every_color=True).load()) == 6 * 105


def test_only_the_colours_asked_for_appear():
    assert {prompt.metadata["color"] for prompt in Words(colors=("red", "blue")).load()} == {"red", "blue"}


def test_the_template_is_the_text():
    prompts = Words(template="{{{word}}} in {color}", colors=("red",), count=1).load()
    assert prompts[0].text == f"{{{prompts[0].metadata['text']}}} in red"


def test_a_colour_that_the_prompt_does_not_name_is_not_asked_for():
    assert all("color" not in prompt.metadata for prompt in Words(template='"{word}"', count=5).load())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "a {colour} sign: {word}"}, "{colour} is no plain placeholder; known are {word} and {color}"),
        ({"template": "{} {word}"}, "{} is no plain placeholder"),
        ({"template": "{word:d}"}, "{word} is no plain placeholder"),
        ({"template": "a {color} sign"}, "must contain {word}"),
        ({"template": "{word} {"}, "Single '{'"),
        ({"template": '"{word}"', "every_color": True}, "unless the template contains {color}"),
        ({"colors": ()}, "at least 1 item"),
        ({"count": 0}, "greater than or equal to 1"),
        ({"split": "eval"}, "'train', 'validation' or 'test'"),
        ({"wrods": 1}, "Extra inputs"),
    ],
)
def test_a_mistaken_option_is_refused_with_the_reason(options, message):
    with pytest.raises(ValidationError) as error:
        Words(**options)
    assert message in str(error.value)


def test_more_prompts_than_there_are_is_an_error_that_says_how_many_there_are():
    with pytest.raises(PluginError, match='count is 106, but the split "test" has 105 prompts'):
        Words(split="test", count=106).load()
    assert len(Words(split="test", count=106, every_color=True).load()) == 106
