"""The reward `aesthetic`: how much people like an image by itself, whatever its prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from vgrpo_core import PluginError

from .checkpoint import assets, loading, state_dict
from .clip import TOKENS, load_clip
from .networks import Limit, Network, in_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import nn

    from vgrpo_core import Asset
    from vgrpo_core.plugin import Score

    from .clip import Clip

WIDTH = 768  # features of ViT-L/14, which the head was trained on


class Aesthetic(Network):
    """Mark out of 10 that people would give the image, from the LAION aesthetic head on CLIP ViT-L/14; the prompt does not count.

    Source: github.com/christophschuhmann/improved-aesthetic-predictor, file sac+logos+ava1-l14-linearMSE.pth.
    """

    name = "aesthetic"
    range: ClassVar[str] = "about 4 to 7"
    model: str = Field(default="openai/clip-vit-large-patch14", description="hub id or folder of CLIP ViT-L/14")
    head: str = Field(
        default="trl-lib/ddpo-aesthetic-predictor/aesthetic-model.pth",
        description="the head on it: a file, or owner/name/file of the hub",
    )

    def assets(self) -> Sequence[Asset]:
        """List model and head, unless they are on this machine."""
        return assets(self.model, self.head)

    def load(self, device: torch.device) -> Score:
        """Load both and return the scoring function: float32 [B]; a checkpoint that can't be used is a PluginError."""
        place, dtype = self.place(device)
        clip = load_clip(self.model, self.model, place, dtype, Limit(self.name, TOKENS))
        self._check(clip)
        head = self._head().to(place)
        return in_batches(lambda samples: head(clip.images(samples)).squeeze(-1), self.batch)

    def _check(self, clip: Clip) -> None:
        import numpy as np

        if (width := clip.images([np.zeros((1, 1, 3), np.uint8)]).shape[1]) != WIDTH:
            what = f'reward "aesthetic": "{self.model}" has {width} features, the head reads {WIDTH}'
            raise PluginError(what, fix="name a CLIP ViT-L/14")

    def _head(self) -> nn.Module:
        """Load the head, always in float32; between its linear layers there is dropout only, which does nothing here."""
        from torch import nn

        hidden = [nn.Linear(WIDTH, 1024), nn.Dropout(), nn.Linear(1024, 128), nn.Dropout(), nn.Linear(128, 64), nn.Dropout()]
        head = nn.ModuleDict({"layers": nn.Sequential(*hidden, nn.Linear(64, 16), nn.Linear(16, 1))})
        with loading(self.name, self.head):
            head.load_state_dict(state_dict(self.name, self.head))
        return head["layers"].eval().requires_grad_(False)
