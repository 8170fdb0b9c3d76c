"""Judges of images; importing them is cheap, for each imports what it needs when it is loaded."""

from __future__ import annotations

from vgrpo_core import Reward, hookimpl

from .aesthetic import Aesthetic
from .clipscore import ClipScore
from .face_count import FaceCount
from .geneval import GenEval
from .hpsv2 import HPSv2
from .imagereward import ImageReward
from .jpeg_size import JpegSize
from .ocr import OCR
from .pickscore import PickScore
from .pixel_color import PixelColor
from .statistics import Brightness, ColorEntropy, DarkFraction, EdgeDensity
from .unifiedreward import UnifiedReward
from .vlm_judge import VLMJudge


@hookimpl
def vgrpo_rewards() -> list[type[Reward]]:
    """Offer the rewards of this package."""
    networks = [Aesthetic, ClipScore, FaceCount, GenEval, HPSv2, ImageReward, OCR, PickScore, UnifiedReward, VLMJudge]
    return [*networks, JpegSize, PixelColor, Brightness, ColorEntropy, DarkFraction, EdgeDensity]
