"""Reading numbers off answers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgrpo_rewards.answers import json_number, mean, number, share, within, yes_and_no

FINAL = r"Final Score:\s*(\S+)"


def test_r025_only_what_the_pattern_finds_is_a_score():
    texts = ["Final", "Final Score: 3.5", "3/5", ""]
    assert [number(FINAL)(text) for text in texts] == pytest.approx([math.nan, 3.5, math.nan, math.nan], nan_ok=True)
    assert number(r"(\d+)/5")("3/5") == 3.0


def test_the_last_match_of_a_pattern_counts():
    assert number(FINAL)("Final Score: 2\nOn second thought, Final Score: 4") == 4.0


@pytest.mark.parametrize(
    "text", ["Final Score: good", "Final Score: 3/5", "Final Score: 0x10", "Final Score: nan", "Final Score: 1_0"]
)
def test_a_match_that_is_no_number_is_missing(text):
    assert math.isnan(number(FINAL)(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        (" 4.\n", 4),
        ("**-0.5**", -0.5),
        ("score:4", 4),
        ("I'd say .25!", 0.25),
        ("评分4分", 4),
        ("1e-2", 0.01),
        ("90%", 90),
    ],
)
def test_without_a_pattern_the_only_number_of_an_answer_is_read(text, value):
    assert number()(text) == value


@pytest.mark.parametrize("text", ["", "four", "3/5", "4 out of 5", "3-5", "1,5", "1.2.3", "GPT4", "4k", "nan", "inf", "5 and 5"])
def test_without_a_pattern_no_number_and_several_are_missing(text):
    assert math.isnan(number()(text))


@pytest.mark.parametrize(
    "text", ["N/A", "[]", '{"a":{}}', '{"a": null}', '{"a": true}', '{"a": "good"}', '{"a": [3]}', '{"a": 3', "{'a': 3}"]
)
def test_r026_json_of_another_shape_is_missing(text):
    assert math.isnan(json_number("a")(text))


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"b": 3}}',
        'Sure {here}:\n```json\n{"note": "a } brace", "a": {"b": 3.0}}\n```\nThat is all.',
        '{"a": {"b": 1}} or better {"a": {"b": "3"}}',
        '[{"other": 7}, {"a": {"b": 3}}, {"a": 9}]',
    ],
)
def test_a_path_leads_into_json_whatever_is_around_it(text):
    assert json_number("a.b")(text) == 3.0


def test_the_last_object_with_the_key_counts_even_if_it_holds_no_number():
    assert math.isnan(json_number("a")('{"a": 1} {"a": null}'))


@pytest.mark.parametrize("text", ['{"a": 1' + "0" * 5000 + "}", '{"a": Infinity}', '{"a": NaN}', "9" * 5000])
def test_a_number_that_is_not_finite_is_missing(text):
    assert math.isnan(within(json_number("a"), None, None)(text))
    assert math.isnan(within(number(), None, None)(text))


def test_a_number_out_of_range_is_missing_and_the_limits_are_in_range():
    texts = ["0.99", "1", "5", "5.01"]
    assert [math.isnan(within(number(), 1, 5)(text)) for text in texts] == [True, False, False, True]
    assert [math.isnan(within(number(), None, 1)(text)) for text in texts] == [False, False, True, True]


def test_a_mean_needs_all_its_numbers():
    both = mean(number(r"a=(\d)"), number(r"b=(\d)"))
    assert both("a=1 b=4") == 2.5
    assert math.isnan(both("a=1"))


@given(st.text() | st.text(alphabet='{}[]",:ab.0123456789e-+ \n'))
def test_no_text_is_an_error(text):
    for parse in (number(), number(FINAL), json_number("a"), json_number("a.b")):
        assert isinstance(within(parse, 0, 5)(text), float)


def test_deep_nesting_is_missing_and_no_error():
    assert math.isnan(json_number("a")('{"a":' * 3000))


def test_the_probability_of_yes_counts_every_spelling_once():
    tokens = {"Yes": 0.3, " yes": 0.1, "▁YES": 0.05, "No": 0.1, " no": 0.05, "Yesterday": 0.2, "Not": 0.1, "": 0.1}
    yes, no = yes_and_no([(token, math.log(p)) for token, p in tokens.items()])
    assert (yes, no) == pytest.approx((0.45, 0.15))
    assert share(yes, no, 0.1) == pytest.approx(0.75)


def test_a_model_that_says_neither_yes_nor_no_is_missing():
    assert math.isnan(share(0.0, 0.0, 0.0))
    assert math.isnan(share(0.05, 0.04, 0.1))
    assert share(0.18, 0.02, 0.1) == pytest.approx(0.9)
    assert share(0.0, 0.5, 0.1) == 0.0
