"""Judges of images; importing them is cheap, for each imports what it needs when it is loaded."""

from __future__ import annotations

from vgrpo_core import Reward, hookimpl

from .jpeg_size import JpegSize
from .ocr import OCR
from .pixel_color import PixelColor


@hookimpl
def vgrpo_rewards() -> list[type[Reward]]:
    """Offer the rewards of this package."""
    return [JpegSize, OCR, PixelColor]
