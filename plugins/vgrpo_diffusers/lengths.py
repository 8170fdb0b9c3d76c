"""Prompts that are longer than what a text encoder reads: said once for each encoder."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import CLIPTokenizer, PreTrainedTokenizerBase

SHOWN = 60  # characters of the prompt


class Lengths:
    """Count the tokens of prompts as the tokenizers of a pipeline do.

    CLIP reads as many as its tokenizer says, 77; other encoders read `max_sequence_length` of the call. diffusers speaks of CLIP
    alone, and a run silences it.
    """

    def __init__(self, encode_prompt: Any, components: Mapping[str, Any]) -> None:
        self.tokenizers = dict(_tokenizers(components))
        parameter = inspect.signature(encode_prompt).parameters.get("max_sequence_length")
        self.default = parameter.default if parameter else None

    def check(self, prompt: str, arguments: Mapping[str, Any]) -> None:
        """Warn the first time that an encoder does not read the whole of a prompt."""
        for encoder, tokenizer in list(self.tokenizers.items()):
            clip = isinstance(tokenizer, CLIPTokenizer)
            limit = tokenizer.model_max_length if clip else arguments.get("max_sequence_length", self.default)
            length = len(tokenizer(prompt).input_ids)
            if limit and length > limit:
                del self.tokenizers[encoder]
                shown = prompt if len(prompt) <= SHOWN else f"{prompt[:SHOWN]}..."
                warnings.warn(f'{encoder} reads {limit} tokens, "{shown}" has {length}; the rest is cut off', stacklevel=2)


def _tokenizers(components: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the tokenizers whose encoders are there, by the encoder's name."""
    for name, tokenizer in components.items():
        encoder = name.replace("tokenizer", "text_encoder")
        if isinstance(tokenizer, PreTrainedTokenizerBase) and components.get(encoder) is not None:
            yield encoder, tokenizer
