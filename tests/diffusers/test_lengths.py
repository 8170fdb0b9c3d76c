"""R047: text encoders of one pipeline read different lengths; one that does not read a whole prompt is named, with its limit."""

from __future__ import annotations

import warnings

import pytest
from transformers import CLIPTokenizer


@pytest.fixture
def said():
    """Encode prompts and return what is said of their lengths."""

    def of(tiny, *calls):
        pipe = tiny.policy().pipe
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for prompts in calls:
                tiny.embeddings(pipe, prompts)
        return [str(each.message) for each in caught if "the rest is cut off" in str(each.message)]

    return of


def message(encoder, limit, prompt, length):
    return f'{encoder} reads {limit} tokens, "{prompt[:60]}..." has {length}; the rest is cut off'


def test_each_clip_encoder_is_named_once_with_what_its_tokenizer_counts(tiny, said):
    prompt, expected = "a" * 90, []
    for name, tokenizer in tiny.pipe().components.items():
        if isinstance(tokenizer, CLIPTokenizer):
            counted = len(tokenizer(prompt).input_ids)
            assert tokenizer.model_max_length < counted
            expected.append(message(name.replace("tokenizer", "text_encoder"), tokenizer.model_max_length, prompt, counted))
    found = said(tiny, [prompt, prompt], [prompt + "b"])
    assert [each for each in found if not each.startswith("text_encoder_3")] == expected != []


def test_t5_reads_as_many_as_the_call_says(sd3_tiny, said):
    prompt = "a b " * 16
    counted = len(sd3_tiny.pipe().tokenizer_3(prompt).input_ids)
    assert said(sd3_tiny, [prompt]) == [message("text_encoder_3", sd3_tiny.tokens, prompt, counted)]


@pytest.mark.parametrize("prompt", ["", "a", "one two"])
def test_prompts_that_are_read_whole_are_not_spoken_of(tiny, said, prompt):
    assert said(tiny, [prompt]) == []
