"""What to write, and how near a text is to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgrpo_core import Prompt
from vgrpo_rewards.spelling import edit_distance, letters, similarity, target

words = st.text("abc", max_size=5)


def by_recursion(a, b):
    if not a or not b:
        return len(a) + len(b)
    return min(by_recursion(a[1:], b) + 1, by_recursion(a, b[1:]) + 1, by_recursion(a[1:], b[1:]) + (a[0] != b[0]))


@given(words, words)
def test_the_edit_distance_is_that_of_the_recursion(a, b):
    assert edit_distance(a, b) == by_recursion(a, b)


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ('a sign that says "Hello World"', "helloworld"),
        ("a sign that says “SALE”", "sale"),
        ("ein Schild mit „Brot“", "brot"),
        ("en skylt med ”Fika”", "fika"),
        ("店に「営業中」の看板", "営業中"),
        ("封面寫著『家 書』", "家書"),
        ('"open" above, “LATE” below', "openlate"),
        ('a sign that says "don\'t"', "don't"),
        ("the dog's owner's hat", ""),
        ("a sign that says 'stop'", ""),
        ('a 5" pipe', ""),
        ('an empty "" and a blank "  "', ""),
        ("a cat", ""),
    ],
)
def test_the_target_is_what_the_prompt_quotes(prompt, wanted):
    assert target(Prompt(prompt)) == wanted


@pytest.mark.parametrize(("text", "wanted"), [("New York", "newyork"), (42, "42"), ("", ""), (None, "old")])
def test_the_metadata_text_comes_before_the_quotes(text, wanted):
    assert target(Prompt('a sign that says "old"', {"text": text})) == wanted


@pytest.mark.parametrize(
    ("read", "wanted", "score"),
    [
        ("Hello World", "hello world", 1.0),
        ("H E L L O", "hello", 1.0),
        ("helo", "hello", 0.8),
        ("sal", "sale", 0.75),
        ("GRAND SALE today", "sale", 1.0),
        ("", "sale", 0.0),
        ("nothing of that kind", "ab", 0.0),
    ],
)
def test_the_similarity_is_one_less_the_share_of_edits(read, wanted, score):
    assert similarity(letters(read), letters(wanted)) == pytest.approx(score)
