"""Prompts of several sets: each has its share at any time, is passed through whole, and depends on nothing but the iteration."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgrpo_core import Prompt, Prompts
from vgrpo_core.prompts import Pool, load_prompts
from vgrpo_core.recipe import PromptSet


class Letters(Prompts):
    name = "letters"
    start: str = "a"
    count: int = 3

    def load(self):
        return [Prompt(f"{self.start}{index}") for index in range(self.count)]


class Tagged(Prompts):
    name = "tagged"

    def load(self):
        return [Prompt("plain"), Prompt("one", {"tag": "ocr"}), Prompt("two", {"tags": ["ocr", "short"]})]


def pool(*sets):
    """Make a pool of (letter, count, share)."""
    return Pool([PromptSet(Letters(start=start, count=count), share) for start, count, share in sets])


@given(
    sets=st.lists(st.tuples(st.integers(1, 5), st.floats(0.1, 5)), min_size=1, max_size=4),
    count=st.integers(1, 6),
    iterations=st.integers(1, 8),
)
def test_each_set_has_had_its_share_at_any_time_to_within_one_prompt_a_set(sets, count, iterations):
    made = pool(*((f"{chr(97 + index)}", size, share) for index, (size, share) in enumerate(sets)))
    total = sum(share for _, share in sets)
    drawn = Counter()
    for iteration in range(1, iterations + 1):
        drawn.update(prompt.text[0] for prompt in made.draw(0, iteration, count))
        for index, (_, share) in enumerate(sets):
            assert abs(drawn[chr(97 + index)] - share / total * iteration * count) <= max(1, len(sets) - 1) + 1e-6


@given(run=st.integers(0, 99), count=st.integers(1, 5))
def test_every_set_is_passed_through_before_a_prompt_comes_again(run, count):
    made = pool(("a", 4, 1), ("b", 3, 2))
    drawn = [prompt.text for iteration in range(1, 31) for prompt in made.draw(run, iteration, count)]
    for letter, size in (("a", 4), ("b", 3)):
        own = [text for text in drawn if text[0] == letter]
        for start in range(0, len(own) - size + 1, size):
            assert len(set(own[start : start + size])) == size


def test_an_iteration_draws_the_same_whatever_was_drawn_before():
    made, late = pool(("a", 4, 1), ("b", 3, 2)), pool(("a", 4, 1), ("b", 3, 2))
    walked = [made.draw(3, iteration, 5) for iteration in range(1, 9)]
    assert late.draw(3, 6, 5) == walked[5]
    assert late.draw(3, 2, 5) == walked[1]


def test_two_sets_of_one_size_are_not_shuffled_alike():
    made = pool(("a", 30, 1), ("b", 30, 1))
    drawn = [prompt.text for prompt in made.draw(0, 1, 60)]
    assert [text[1:] for text in drawn if text[0] == "a"] != [text[1:] for text in drawn if text[0] == "b"]


@pytest.mark.parametrize(("tag", "added"), [(None, set()), ("set", {"set"})])
def test_a_prompt_has_the_tags_of_its_metadata_and_of_its_set(tag, added):
    plain, one, two = load_prompts([PromptSet(Tagged(), tag=tag)])
    assert (plain.tags, one.tags, two.tags) == (added, {"ocr"} | added, {"ocr", "short"} | added)
