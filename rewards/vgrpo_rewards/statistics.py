"""Statistics of the pixels, to watch beside a reward: what it is not about should not move while it rises."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from vgrpo_core import Reward

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vgrpo_core.plugin import Score

LEVELS = 4  # of each channel in the histogram of `color_entropy`


class Brightness(Reward):
    """Mean luminance of the image, by the weights of Rec. 709: 0.2126 red + 0.7152 green + 0.0722 blue; black is 0, white 1.

    The weights are applied to the values of the image as they are, without undoing their gamma.
    """

    name = "brightness"
    range: ClassVar[str] = "0 to 1"

    def load(self, device: torch.device) -> Score:
        """Return the scoring function: float32 [B] in [0, 1]."""
        return lambda samples: luminance(samples.images).mean((1, 2))


class DarkFraction(Reward):
    """Share of the pixels whose luminance, as `brightness` takes it, is under `threshold`."""

    name = "dark_fraction"
    range: ClassVar[str] = "0 to 1"
    threshold: float = Field(default=0.05, gt=0, le=1, description="luminance under which a pixel is dark; black is 0, white 1")

    def load(self, device: torch.device) -> Score:
        """Return the scoring function: float32 [B] in [0, 1]."""
        return lambda samples: (luminance(samples.images) < self.threshold).float().mean((1, 2))


class EdgeDensity(Reward):
    """Mean steepness of the luminance, in its units per pixel, by Sobel's operator; it falls when images blur.

    The operator is [1, 2, 1] across times [-1, 0, 1] along, over 8, for both axes; the steepness is the length of the two slopes. A
    ramp has that of its slope; a sharp upright border between black and white 0.5 on either side; a checkerboard of single pixels
    none. The outermost pixels do not count, and an image with less than 3 pixels a side is missing (NaN).
    """

    name = "edge_density"
    range: ClassVar[str] = "0 to 0.56; about 0.01 to 0.04 for photographs"

    def load(self, device: torch.device) -> Score:
        """Return the scoring function: float32 [B] in [0, 0.56], NaN for images that are too small."""
        return lambda samples: steepness(luminance(samples.images)).mean((1, 2))


class ColorEntropy(Reward):
    """Entropy in bits of the image's colours, in a histogram of 4 equal ranges for each of red, green and blue, 64 in all.

    One colour is 0, all ranges alike 6. It falls when images lose their colours.
    """

    name = "color_entropy"
    range: ClassVar[str] = "0 to 6"

    def load(self, device: torch.device) -> Score:
        """Return the scoring function: float32 [B] in [0, 6]."""
        return lambda samples: entropy(samples.images)


def luminance(images: Tensor) -> Tensor:
    """Weigh the channels as Rec. 709 does: [B, 3, H, W] -> [B, H, W]."""
    red, green, blue = images.unbind(1)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def steepness(planes: Tensor) -> Tensor:
    """Return the length of the two slopes by Sobel's operator: [B, H, W] -> [B, H - 2, W - 2]; nothing is left of small planes."""
    columns = planes[:, :-2] + 2 * planes[:, 1:-1] + planes[:, 2:]
    rows = planes[:, :, :-2] + 2 * planes[:, :, 1:-1] + planes[:, :, 2:]
    return (columns[:, :, 2:] - columns[:, :, :-2]).hypot(rows[:, 2:] - rows[:, :-2]) / 8


def entropy(images: Tensor) -> Tensor:
    """Return the entropy of the colour histogram in bits: [B, 3, H, W] -> [B]."""
    red, green, blue = (images * LEVELS).long().clamp(max=LEVELS - 1).flatten(2).unbind(1)
    bins = (red * LEVELS + green) * LEVELS + blue
    counts = bins.new_zeros(len(bins), LEVELS**3).scatter_add_(1, bins, bins.new_ones(bins.shape))
    shares = counts / bins.shape[1]
    return shares.xlogy(1 / shares).sum(1) / math.log(2)
