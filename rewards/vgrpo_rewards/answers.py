"""How a number is read off what a vision-language model answers. What can't be read is NaN, never 0."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

Parse = Callable[[str], float]

NUMBER = re.compile(r"(?<![A-Za-z0-9_.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![A-Za-z0-9_]|\.\d)")
# An integer of thousands of digits is an error to int() but infinite to float().
DECODER = json.JSONDecoder(parse_int=float)
YES = ("Yes", "yes", "YES", " Yes", " yes", " YES")
NO = ("No", "no", "NO", " No", " no", " NO")
MARKS = " \t\r\n▁Ġ"  # how tokenizers write a space


@dataclass(frozen=True)
class Failure:
    """An answer that never came, and why."""

    reason: str


def number(pattern: str | None = None) -> Parse:
    """Return a parser of the number in the one group of `pattern`, at its last match; without one, of the only number there is."""
    if pattern is None:
        return _only_number
    compiled = re.compile(pattern)

    def parse(text: str) -> float:
        found = compiled.findall(text)
        return _number(found[-1]) if found else math.nan

    return parse


def json_number(path: str) -> Parse:
    """Return a parser of the number at `path`, such as "score" or "scores.style", in the last JSON object that has it.

    Text and code fences around the JSON do not matter; a number in quotes counts.
    """
    names = path.split(".")

    def parse(text: str) -> float:
        held = [value for one in _objects(text) for value in _at(one, names)]
        return _number(held[-1]) if held else math.nan

    return parse


def mean(*parses: Parse) -> Parse:
    """Return a parser of the mean of what all of `parses` read; NaN where one of them reads nothing."""
    return lambda text: math.fsum(parse(text) for parse in parses) / len(parses)


def within(parse: Parse, low: float | None, high: float | None) -> Parse:
    """Return a parser that takes what is not finite, below `low` or above `high` for unread."""
    least, most = -math.inf if low is None else low, math.inf if high is None else high

    def checked(text: str) -> float:
        value = parse(text)
        return value if math.isfinite(value) and least <= value <= most else math.nan

    return checked


def yes_and_no(tokens: Iterable[tuple[str, float]]) -> tuple[float, float]:
    """Add up the probabilities of the tokens, given with their logarithms, that say yes and of those that say no."""
    said = [(token.strip(MARKS).lower(), math.exp(logarithm)) for token, logarithm in tokens]
    return math.fsum(p for word, p in said if word == "yes"), math.fsum(p for word, p in said if word == "no")


def share(yes: float, no: float, min_mass: float) -> float:
    """Return the probability of yes among yes and no; NaN where both together are less probable than `min_mass`."""
    return yes / (yes + no) if yes + no >= min_mass and yes + no > 0 else math.nan


def _only_number(text: str) -> float:
    found = NUMBER.findall(text)
    return float(found[0]) if len(found) == 1 else math.nan


def _number(value: Any) -> float:
    if isinstance(value, str):
        return float(value) if NUMBER.fullmatch(value.strip()) else math.nan
    return value if isinstance(value, float) else math.nan


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a text that are not inside another one."""
    start = text.find("{")
    while start >= 0:
        try:
            found, end = DECODER.raw_decode(text, start)
            yield found
        except (ValueError, RecursionError):
            end = start + 1
        start = text.find("{", end)


def _at(value: Any, names: list[str]) -> list[Any]:
    """Return what is at a path, or nothing; a null is something."""
    for name in names:
        if not isinstance(value, dict) or name not in value:
            return []
        value = value[name]
    return [value]
