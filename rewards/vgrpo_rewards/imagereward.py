"""The reward `imagereward`: which image of a prompt people would prefer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from vgrpo_core import PluginError

from .checkpoint import assets, loading
from .networks import Limit, Network, in_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from vgrpo_core import Asset, Samples
    from vgrpo_core.plugin import Score

    from .blip import Blip

TOKENS = 35  # what the text encoder was trained with, start and end included
MEAN, STD = 0.16717362830052426, 1.0333394966054072  # with which the original standardises the head's output


class ImageReward(Network):
    """Human preference for an image among those of its prompt, from ImageReward; standardised, so that negative scores are normal.

    Source: Xu et al., arXiv 2304.05977, github.com/THUDM/ImageReward. A prompt is cut to 35 tokens, its start and end included.
    """

    name = "imagereward"
    range: ClassVar[str] = "about -2.3 to 2"
    text_limit: ClassVar[int | None] = TOKENS
    checkpoint: str = Field(default="THUDM/ImageReward/ImageReward.pt", description="a file, or owner/name/file of the hub")
    tokenizer: str = Field(default="google-bert/bert-base-uncased", description="folder or hub id of BERT's tokenizer")

    def assets(self) -> Sequence[Asset]:
        """List checkpoint and tokenizer, unless they are on this machine."""
        return assets(self.checkpoint, self.tokenizer)

    def load(self, device: torch.device) -> Score:
        """Load both and return the scoring function: float32 [B]; what can't be used is a PluginError."""
        from .blip import load_blip

        blip = load_blip(self.name, self.checkpoint, *self.place(device))
        tokenizer, limit = self._tokenizer(blip.vocabulary), Limit(self.name, TOKENS)
        return in_batches(lambda samples: score(samples, blip, tokenizer, limit), self.batch)

    def _tokenizer(self, vocabulary: int) -> Any:
        """Load BERT's tokenizer with the two tokens that BLIP adds, as the original does."""
        from transformers import BertTokenizer

        with loading(self.name, self.tokenizer):
            tokenizer = BertTokenizer.from_pretrained(self.tokenizer)
        tokenizer.add_special_tokens({"bos_token": "[DEC]"})
        tokenizer.add_special_tokens({"additional_special_tokens": ["[ENC]"]})
        if len(tokenizer) != vocabulary:
            what = f'reward "{self.name}": the tokenizer "{self.tokenizer}" does not fit "{self.checkpoint}"'
            raise PluginError(what, f"with [DEC] and [ENC] it has {len(tokenizer)} tokens, the checkpoint {vocabulary}")
        return tokenizer


def score(samples: Samples, blip: Blip, tokenizer: Any, limit: Limit) -> Tensor:
    """Score images of any size: float32 [B]."""
    from .blip import pixel_values

    texts = [prompt.text for prompt in samples.prompts]
    limit.check([len(ids) for ids in tokenizer(texts, verbose=False).input_ids])
    tokens = tokenizer(texts, padding="max_length", truncation=True, max_length=limit.tokens, return_tensors="pt")
    found = blip(pixel_values(samples.pixels(), blip.size), tokens.input_ids, tokens.attention_mask)
    return (found - MEAN) / STD
