"""The reward `pixel_color`: the ink has the colour that the prompt asks for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from vgrpo_core import PluginError, Prompt, Reward
from vgrpo_core.errors import nearest

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vgrpo_core import Samples
    from vgrpo_core.plugin import Score

PALETTE = {
    "red": (205, 30, 30),
    "green": (20, 135, 40),
    "blue": (30, 60, 205),
    "black": (15, 15, 15),
    "orange": (225, 120, 10),
    "purple": (130, 30, 150),
}
INK = 0.08  # share of the pixels; about what four letters cover on the signs of the embedded model
REACH = 200.0  # distance in RGB at which the score is 0; black and white are 442 apart


def ink(images: Tensor) -> Tensor:
    """Return the mean colour of the pixels farthest from the border's median colour: [B, 3, H, W] -> [B, 3]."""
    pixels, border = images.flatten(2), images[..., _border(*images.shape[-2:])]
    distance = (pixels - border.quantile(0.5, dim=-1, keepdim=True)).square().sum(1, keepdim=True)
    farthest = distance.topk(max(1, int(INK * pixels.shape[-1])), dim=-1).indices
    return pixels.gather(-1, farthest.expand(-1, 3, -1)).mean(-1)


def _border(height: int, width: int) -> Tensor:
    """Mark the outermost pixels: bool [H, W]."""
    import torch

    mask = torch.ones(height, width, dtype=torch.bool)
    mask[1:-1, 1:-1] = False
    return mask


class PixelColor(Reward):
    """Closeness of the ink's mean colour to the colour that the prompt names: 1 is exact, 0 a distance of 200 or more in 8-bit RGB.

    The ink is the 8 % of the pixels that are farthest from the border's median colour. A prompt without a colour is missing (NaN).
    """

    name = "pixel_color"
    field: str = Field(default="color", description="where the prompt's metadata holds the name of the colour")

    def load(self, device: torch.device) -> Score:
        """Return the scoring function: float32 [B] in [0, 1]; an unknown colour is a PluginError."""
        return self._score

    def _score(self, samples: Samples) -> Tensor:
        wanted = samples.images.new_tensor([self._wanted(prompt) for prompt in samples.prompts]).reshape(-1, 3)
        distance = (ink(samples.images * 255) - wanted).square().sum(-1).sqrt()
        return (1 - distance / REACH).clamp(0, 1)

    def _wanted(self, prompt: Prompt) -> tuple[float, float, float]:
        if prompt.metadata.get(self.field) is None:
            return (math.nan, math.nan, math.nan)
        color = str(prompt.metadata[self.field])
        if color not in PALETTE:
            what = f'reward "pixel_color": unknown colour "{color}" of the prompt {prompt.text!r}{nearest(color, PALETTE)}'
            raise PluginError(what, fix=f"known colours: {', '.join(PALETTE)}")
        return PALETTE[color]
