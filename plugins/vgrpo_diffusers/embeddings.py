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
        rows = [self._row(prompt, rest) for prompt in prompts]
        return tuple(None if part[0] is None else torch.cat(part) for part in zip(*rows, strict=True))

    def _row(self, prompt: str, rest: dict[str, Any]) -> Row:
        key = (prompt, repr(sorted(rest.items())))
        if key not in self.rows:
            per_prompt = {name: None if isinstance(value, list) else value for name, value in rest.items()}
            self.rows[key] = tuple(self.encode_prompt(prompt=[prompt], **per_prompt))
        self.rows.move_to_end(key)
        if len(self.rows) > LIMIT:
            self.rows.popitem(last=False)
        return self.rows[key]
