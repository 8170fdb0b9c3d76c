"""The prompt source `words`: ordinary English words of three or four letters, each to be written on a coloured sign."""

from __future__ import annotations

import string
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from vgrpo_core import PluginError, Prompt, Prompts

Split = Literal["train", "validation", "test"]
PLACEHOLDERS = ("word", "color")


def words(split: Split) -> list[str]:
    """Return the words of one split, in the order of the list."""
    listed = Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split()
    return [word for word in listed if split_of(word) == split]


def split_of(word: str) -> Split:
    """Return the split of a word: one of sixteen hash values is the test's, one the validation's, the rest are for training."""
    match blake2b(word.encode(), digest_size=2).digest()[0] % 16:
        case 0:
            return "test"
        case 1:
            return "validation"
        case _:
            return "train"


class Words(Prompts):
    """Yield `a red sign that says "word"` for a fixed list of English words; the metadata holds `text` and `color`.

    Split, colour and order are hashes of the words: they depend on the options alone, and the first `count` are a fair sample.
    """

    name = "words"
    split: Split = Field(default="train", description="which words; no word is in two splits")
    colors: tuple[str, ...] = Field(
        default=("red", "green", "blue", "black", "orange", "purple"), min_length=1, description="the colours of the ink"
    )
    template: str = Field(
        default='a {color} sign that says "{word}"', description="the text of a prompt, with the placeholders {word} and {color}"
    )
    count: int | None = Field(default=None, ge=1, description="how many prompts; all without it")
    every_color: bool = Field(default=False, description="each word in every colour, not in one")

    @field_validator("template")
    @classmethod
    def _known_placeholders(cls, template: str) -> str:
        parts = [part[1:] for part in string.Formatter().parse(template) if part[1] is not None]
        for name, spec, conversion in parts:
            if name not in PLACEHOLDERS or spec or conversion:
                raise ValueError(f"{{{name}}} is no plain placeholder; known are {{word}} and {{color}} (write {{{{ for a brace)")
        if ("word", "", None) not in parts:
            raise ValueError("it must contain {word}, the word to write")
        return template

    @model_validator(mode="after")
    def _distinct_prompts(self) -> Words:
        if self.every_color and not self._named("color"):
            raise ValueError("every_color repeats each prompt unless the template contains {color}")
        return self

    def load(self) -> Sequence[Prompt]:
        """Return the prompts; asking for more than there are is a PluginError."""
        pairs = [(word, color) for word in words(self.split) for color in self._colors_of(word)]
        if self.count is not None and self.count > len(pairs):
            what = f'prompts "words": count is {self.count}, but the split "{self.split}" has {len(pairs)} prompts'
            raise PluginError(what, fix="lower count" if self.every_color else "lower count, or set every_color = true")
        pairs.sort(key=lambda pair: _hash("order", *pair))
        return [self._prompt(word, color) for word, color in pairs[: self.count]]

    def _colors_of(self, word: str) -> Sequence[str]:
        return self.colors if self.every_color else [self.colors[_hash("color", word) % len(self.colors)]]

    def _prompt(self, word: str, color: str) -> Prompt:
        metadata = {"text": word} | ({"color": color} if self._named("color") else {})
        return Prompt(self.template.format(word=word, color=color), metadata)

    def _named(self, placeholder: str) -> bool:
        return any(part[1] == placeholder for part in string.Formatter().parse(self.template))


def _hash(purpose: str, *parts: str) -> int:
    return int.from_bytes(blake2b(" ".join(parts).encode(), digest_size=8, person=purpose.encode()).digest())
