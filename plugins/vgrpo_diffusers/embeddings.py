"""Prompt embeddings, encoded once per prompt: what a pipeline's `encode_prompt` returned is kept for the next call."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

LIMIT = 512  # prompts kept; the one not used for longest goes first

Row = tuple[Tensor | None, ...]


class Embeddings:
    """Stand where a pipeline's `encode_prompt` stood."""

    def __init__(self, encode_prompt: Any) -> None:
        self.encode_prompt, self.signature = encode_prompt, inspect.signature(encode_prompt)
        self.rows: OrderedDict[tuple[str, str], Row] = OrderedDict()

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Row:
        """Encode prompts one by one where they are new, and join the rows as one call would have."""
        arguments = self.signature.bind(*args, **kwargs).arguments
        prompts: list[str] = list(arguments["prompt"])
        rest = {key: value for key, value in arguments.items() if key != "prompt"}
        own = [{key: _own(value, row, len(prompts)) for key, value in rest.items()} for row in range(len(prompts))]
        rows = [self._row(prompt, each) for prompt, each in zip(prompts, own, strict=True)]
        return tuple(None if part[0] is None else torch.cat(part) for part in zip(*rows, strict=True))

    def _row(self, prompt: str, rest: dict[str, Any]) -> Row:
        key = (prompt, repr(sorted(rest.items())))
        if key not in self.rows:
            self.rows[key] = tuple(self.encode_prompt(prompt=[prompt], **rest))
        self.rows.move_to_end(key)
        if len(self.rows) > LIMIT:
            self.rows.popitem(last=False)
        return self.rows[key]


def _own(value: Any, row: int, rows: int) -> Any:
    """Return what one row is given of an argument: its own text of a list of texts, one a prompt; anything else as it is."""
    texts = isinstance(value, list) and len(value) == rows and all(isinstance(text, str) for text in value)
    return [value[row]] if texts else value
