"""The reward `pickscore`: what people would pick, learnt from their choices between two images."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from .checkpoint import assets
from .clip import TOKENS, load_clip
from .networks import Limit, Network, in_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from vgrpo_core import Asset
    from vgrpo_core.plugin import Score


class PickScore(Network):
    """Score of PickScore for prompt and image: the factor of the model, about 100, times their cosine.

    Source: Kirstain et al., arXiv 2305.01569.
    """

    name = "pickscore"
    range: ClassVar[str] = "about 18 to 26"
    text_limit: ClassVar[int | None] = TOKENS
    model: str = Field(default="yuvalkirstain/PickScore_v1", description="hub id or folder of the weights")
    processor: str = Field(
        default="laion/CLIP-ViT-H-14-laion2B-s32B-b79K", description="hub id or folder of the image processor and the tokenizer"
    )

    def assets(self) -> Sequence[Asset]:
        """List weights and processor, unless they are folders."""
        return assets(self.model, self.processor)

    def load(self, device: torch.device) -> Score:
        """Load the model and return the scoring function: float32 [B]; a checkpoint that can't be used is a PluginError."""
        clip = load_clip(self.model, self.processor, *self.place(device), Limit(self.name, TOKENS))
        return in_batches(lambda samples: clip.scale * clip.similarity(samples), self.batch)
