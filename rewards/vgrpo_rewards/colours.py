"""Which of GenEval's ten colours an object has: by CLIP, as the benchmark does, or by its pixels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from .clauses import COLORS

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from .clip import Clip
    from .detectors import Detection

TEMPLATES = ("a photo of a {color} {word}", "a photo of a {color}-colored {word}", "a photo of a {color} object")
GREY = 0x99  # what the benchmark paints around an object whose outline is known
SHADES = {
    "red": ("e50000", "840000", "ff474c"), "orange": ("f97306", "c65102", "fdaa48"), "yellow": ("ffff14", "d5b60a", "fffe7a"),
    "green": ("15b01a", "033500", "96f97b"), "blue": ("0343df", "00035b", "95d0fc"), "purple": ("7e1e9c", "35063e", "bf77f6"),
    "pink": ("ff81c0", "cb416b", "ffd1df"), "brown": ("653700", "341c02", "ad8150"), "black": ("000000",), "white": ("ffffff",),
    "grey": ("929591",),
}  # fmt: skip
"""What most people call by each name, with "dark" and "light" before it: the XKCD colour survey (CC0). Grey is never asked for."""
PIXELS = 4096  # of an object that are looked at, evenly spread
TO_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))  # ITU-R BT.709, D65
WHITE = (0.95047, 1.0, 1.08883)  # D65


class Crop(NamedTuple):
    """The part of an image that shows an object."""

    pixels: np.ndarray
    """Uint8 RGB [H, W, 3]."""
    mask: np.ndarray | None
    """Bool [H, W], from a detector that segments."""
    word: str
    """How the prompt calls the object."""

    @classmethod
    def of(cls, image: np.ndarray, detection: Detection, word: str) -> Crop:
        """Cut an object out of a whole image, its box rounded to pixels, inside the image and never empty."""
        height, width = image.shape[:2]
        left, top, right, bottom = (round(side) for side in detection.box)
        left, top = min(max(left, 0), width - 1), min(max(top, 0), height - 1)
        part = (slice(top, max(bottom, top + 1)), slice(left, max(right, left + 1)))
        return cls(image[part], None if detection.mask is None else detection.mask[part], word)


Name = Callable[[Sequence[Crop]], list[str]]
"""From objects to the names of their colours."""


def by_clip(clip: Clip) -> Name:
    """Name the colour whose description CLIP finds most like the object, on grey where its outline is known (GenEval)."""

    @cache
    def classifier(word: str) -> Tensor:
        from torch.nn.functional import normalize

        texts = [template.format(color=color, word=word) for color in COLORS for template in TEMPLATES]
        return normalize(clip.texts(texts).view(len(COLORS), len(TEMPLATES), -1).mean(1), dim=-1)

    def name(crops: Sequence[Crop]) -> list[str]:
        if not crops:
            return []
        pictures = clip.images([_on_grey(crop) for crop in crops])
        return [COLORS[int((classifier(crop.word) @ row).argmax())] for row, crop in zip(pictures, crops, strict=True)]

    return name


def by_pixels(crops: Sequence[Crop]) -> list[str]:
    """Name the colour that most of an object's pixels are nearest to in CIELAB; "grey" is none of the ten.

    Its pixels are those of its mask, or without one the middle half of its box, each way.
    """
    return [_most_common(_pixels(crop)) for crop in crops]


def _on_grey(crop: Crop) -> np.ndarray:
    if crop.mask is None:
        return crop.pixels
    painted: np.ndarray = crop.pixels.copy()
    painted[~crop.mask] = GREY
    return painted


def _pixels(crop: Crop) -> np.ndarray:
    """Return an object's own pixels: [N, 3]."""
    if crop.mask is not None and crop.mask.any():
        own: np.ndarray = crop.pixels[crop.mask]
        return own
    height, width = crop.pixels.shape[:2]
    middle = crop.pixels[height // 4 : height - height // 4, width // 4 : width - width // 4]
    return middle.reshape(-1, 3)


def _most_common(pixels: np.ndarray) -> str:
    import numpy as np

    names, shades = _shades()
    sample = lab(pixels[:: max(1, len(pixels) // PIXELS)])
    nearest = np.square(sample[:, None] - shades).sum(-1).argmin(-1)
    name: str = Counter(names[shade] for shade in nearest.tolist()).most_common(1)[0][0]
    return name


@cache
def _shades() -> tuple[list[str], np.ndarray]:
    """Return the names of all shades, and their CIELAB values [N, 3]."""
    import numpy as np

    named = [(name, list(bytes.fromhex(shade))) for name, shades in SHADES.items() for shade in shades]
    return [name for name, _ in named], lab(np.array([shade for _, shade in named]))


def lab(pixels: np.ndarray) -> np.ndarray:
    """Convert 8-bit sRGB [N, 3] to CIELAB (CIE 1976, D65)."""
    import numpy as np

    share = pixels / 255
    linear = np.where(share > 0.04045, ((share + 0.055) / 1.055) ** 2.4, share / 12.92)
    ratio = linear @ np.array(TO_XYZ).T / WHITE
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116).T
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)
