"""Prompt embeddings, encoded once per prompt: what a pipeline's `encode_prompt` returned is kept for the next call."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from .lengths import Lengths

LIMIT = 512  # prompts kept; the one not used for longest goes first

Part = Tensor | list[Tensor] | None
Row = tuple[Part, ...]


class Uneven(Exception):
    """Raised for prompts that no one call can hold, because their embeddings differ in shape; `groups` are the rows that fit."""

    def __init__(self, groups: list[list[int]]) -> None:
        super().__init__(f"rows {groups} do not fit in one call")
        self.groups = groups


class Embeddings:
    """Stand where a pipeline's `encode_prompt` stood."""

    def __init__(self, encode_prompt: Any, components: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.encode_prompt, self.signature = encode_prompt, inspect.signature(encode_prompt)
        self.lengths = Lengths(encode_prompt, components)
        self.rows: OrderedDict[tuple[str, str], Row] = OrderedDict()

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Row:
        """Encode prompts one by one where they are new, and join the rows as one call would have; raises Uneven."""
        arguments = self.signature.bind(*args, **kwargs).arguments
        prompts: list[str] = [arguments["prompt"]] if isinstance(arguments["prompt"], str) else list(arguments["prompt"])
        rest = {key: value for key, value in arguments.items() if key != "prompt"}
        rows = self._rows(prompts, rest)
        groups: dict[Any, list[int]] = {}
        for index, row in enumerate(rows):
            groups.setdefault(tuple(getattr(part, "shape", None) for part in row), []).append(index)
        if len(groups) > 1:
            raise Uneven(list(groups.values()))
        return tuple(map(_joined, zip(*rows, strict=True)))

    def _rows(self, prompts: list[str], rest: dict[str, Any]) -> list[Row]:
        """Look up each row; the rows of one prompt are one, unless another argument has a text for each row."""
        if any(_own(value, 0, len(prompts)) is not value for value in rest.values()):
            own = [{key: _own(value, row, len(prompts)) for key, value in rest.items()} for row in range(len(prompts))]
            return [self._row(prompt, each) for prompt, each in zip(prompts, own, strict=True)]
        found = {prompt: self._row(prompt, rest) for prompt in dict.fromkeys(prompts)}
        return [found[prompt] for prompt in prompts]

    def _row(self, prompt: str, rest: dict[str, Any]) -> Row:
        key = (prompt, repr(sorted(rest.items())))
        if key not in self.rows:
            self.lengths.check(prompt, rest)
            self.rows[key] = tuple(self.encode_prompt(prompt=[prompt], **rest))
        self.rows.move_to_end(key)
        if len(self.rows) > LIMIT:
            self.rows.popitem(last=False)
        return self.rows[key]


def _joined(parts: tuple[Any, ...]) -> Part:
    """Join one part of all rows: lists end to end, tensors along the first axis that has one row; others belong to all rows."""
    if isinstance(parts[0], list):
        return [each for part in parts for each in part]
    axis = parts[0].shape.index(1) if isinstance(parts[0], Tensor) and 1 in parts[0].shape else None
    return parts[0] if axis is None else torch.cat(parts, axis)


def _own(value: Any, row: int, rows: int) -> Any:
    """Return what one row is given of an argument: its own text of a list of texts, one a prompt; anything else as it is."""
    texts = isinstance(value, list) and len(value) == rows and all(isinstance(text, str) for text in value)
    return [value[row]] if texts else value
