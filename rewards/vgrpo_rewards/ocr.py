"""The reward `ocr`: the picture shows the text that the prompt asks for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from vgrpo_core import Reward

from .rapid import scene_reader, word_reader
from .spelling import letters, similarity, target

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vgrpo_core import Samples
    from vgrpo_core.plugin import Score

    from .rapid import Read


class OCR(Reward):
    """Likeness of the text read off the image to the text asked for: 1 - edit distance / length, at least 0; 1 if it is contained.

    Asked for is the `text` of the prompt's metadata, else what the prompt quotes; without either the score is missing (NaN).
    Spaces and case do not count. An image without text scores 0. Runs on the CPU.
    """

    name = "ocr"
    requires: ClassVar[tuple[str, ...]] = ("rapidocr", "onnxruntime")
    extra: ClassVar[str] = "vgrpo[ocr]"
    mode: Literal["word", "scene"] = Field(
        default="scene", description="scene: look for text anywhere; word: the picture is one word (faster)"
    )
    min_confidence: float = Field(default=0.0, ge=0, le=1, description="texts read with less confidence do not count")
    longest_side: int = Field(default=512, ge=32, description="scene: larger images are shrunk to this many pixels to find text")
    threads: int | None = Field(default=None, ge=1, description="CPU threads; as many as torch has without it")

    def load(self, device: torch.device) -> Score:
        """Load the engine and return the scoring function: float32 [B] in [0, 1]."""
        import torch

        threads = self.threads or torch.get_num_threads()
        read = word_reader(threads) if self.mode == "word" else scene_reader(threads, self.longest_side)
        return lambda samples: score(samples, read, self.min_confidence)


def score(samples: Samples, read: Read, min_confidence: float = 0.0) -> Tensor:
    """Score what `read` finds on each image of a prompt with a target: float32 [B], NaN for the others."""
    targets = [target(prompt) for prompt in samples.prompts]
    rows = [row for row, wanted in enumerate(targets) if wanted]
    scores = samples.images.new_full((len(samples),), math.nan)
    for row, found in zip(rows, read(samples.pixels()[rows]), strict=True):
        text = "".join(text for text, confidence in found if confidence >= min_confidence)
        scores[row] = similarity(letters(text), targets[row])
    return scores
