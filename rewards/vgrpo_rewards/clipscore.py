"""The reward `clipscore`: how well the image matches its prompt for CLIP."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from .checkpoint import assets
from .clip import TOKENS, load_clip
from .networks import Limit, Network, in_batches
from .openclip import SCHEMES, load_open_clip

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from vgrpo_core import Asset
    from vgrpo_core.plugin import Score

    from .clip import Clip


class ClipScore(Network):
    """Cosine of the CLIP features of prompt and image, neither scaled nor clipped (the papers' CLIPScore is 2.5 times that)."""

    name = "clipscore"
    range: ClassVar[str] = "about 0.2 to 0.35"
    text_limit: ClassVar[int | None] = TOKENS
    model: str = Field(
        default="openai/clip-vit-large-patch14",
        description="hub id or folder; for open_clip `hf-hub:` and a hub id, or `local-dir:` and a folder",
    )

    def assets(self) -> Sequence[Asset]:
        """List the model, unless it is a folder."""
        return () if self.model.startswith("local-dir:") else assets(self.model.removeprefix("hf-hub:"))

    def load(self, device: torch.device) -> Score:
        """Load the model and return the scoring function: float32 [B] in [-1, 1]; an unusable checkpoint is a PluginError."""
        return in_batches(self._clip(*self.place(device)).similarity, self.batch)

    def _clip(self, device: torch.device, dtype: torch.dtype) -> Clip:
        limit = Limit(self.name, TOKENS)
        if self.model.startswith(SCHEMES):
            return load_open_clip(self.model, device, dtype, limit)
        return load_clip(self.model, self.model, device, dtype, limit)
