"""The reward `jpeg_size`: how much there is in a picture, as a compressor sees it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from vgrpo_core import Reward

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from vgrpo_core import Samples
    from vgrpo_core.plugin import Score

QUALITY = 95


class JpegSize(Reward):
    """Size of the image as a JPEG of quality 95, in kB (1000 bytes); a negative weight asks for images that compress well."""

    name = "jpeg_size"

    def load(self, device: torch.device) -> Score:
        """Return the scoring function: float32 [B], above 0."""
        return _score


def _score(samples: Samples) -> Tensor:
    return samples.images.new_tensor([_kilobytes(image) for image in samples.pixels()])


def _kilobytes(image: np.ndarray) -> float:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=QUALITY)
    return file.tell() / 1000
