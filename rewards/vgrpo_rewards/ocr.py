"""The reward `ocr`: the picture shows the text that the prompt asks for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from vgrpo_core import Asset, Reward

from . import easy, rapid
from .engines import Engine
from .spelling import letters, similarity, target, wanted

if TYPE_CHECKING:
    import torch

    from vgrpo_core import Samples, Scores
    from vgrpo_core.plugin import Score

    from .engines import Lines, Read


class OCR(Reward):
    """Likeness of the text read off the image to the text asked for: 1 - edit distance / length, at least 0; 1 if it is contained.

    Asked for is the `text` of the prompt's metadata, else what the prompt quotes; without either the score is missing (NaN).
    Spaces and case do not count. An image without text scores 0. Runs on the CPU.
    """

    name = "ocr"
    range: ClassVar[str] = "0 to 1"
    requires: ClassVar[tuple[str, ...]] = ("rapidocr", "onnxruntime")  # what another engine needs besides is checked when it loads
    extra: ClassVar[str] = "vgrpo[ocr]"
    engine: Engine = Field(
        default="rapidocr", description="rapidocr: PP-OCRv6; ppocrv4: an older PP-OCR; easyocr: another family, English only, slow"
    )
    mode: Literal["word", "scene"] = Field(
        default="scene", description="scene: look for text anywhere; word: the picture is one word (faster)"
    )
    min_confidence: float = Field(default=0.0, ge=0, le=1, description="texts read with less confidence do not count")
    longest_side: int = Field(default=512, ge=32, description="scene: larger images are shrunk to this many pixels to find text")
    threads: int | None = Field(
        default=None, ge=1, description="CPU threads; as many as torch has without it, as easyocr always does"
    )
    models: Path | None = Field(
        default=None, description="folder with the engine's weights; default: its package's, or fetched by easyocr"
    )

    def assets(self) -> Sequence[Asset]:
        """List the weights that EasyOCR fetches; those of the other engines come in wheels."""
        if self.engine != "easyocr" or self.models is not None:
            return ()
        return tuple(Asset(f"EasyOCR {name}", size, "Apache-2.0") for name, size in zip(easy.WEIGHTS, (0.08, 0.02), strict=True))

    def load(self, device: torch.device) -> Score:
        """Load the engine and return the scoring function: float32 [B] in [0, 1], with what was read."""
        read = self._reader()
        return lambda samples: score(samples, read, self.min_confidence)

    def _reader(self) -> Read:
        import torch

        if self.engine == "easyocr":
            return easy.word_reader(self.models) if self.mode == "word" else easy.scene_reader(self.models, self.longest_side)
        threads = self.threads or torch.get_num_threads()
        if self.mode == "word":
            return rapid.word_reader(self.engine, self.models, threads)
        return rapid.scene_reader(self.engine, self.models, self.longest_side, threads)


def score(samples: Samples, read: Read, min_confidence: float = 0.0) -> Scores:
    """Score what `read` finds on each image of a prompt with a target: float32 [B], NaN for the others, whose images are not read.

    The evidence holds the text that was `read`, the `unsure` one that did not count, and the one `wanted`.
    """
    from vgrpo_core import Scores

    targets = [target(prompt) for prompt in samples.prompts]
    rows = [row for row, text in enumerate(targets) if text]
    values = samples.images.new_full((len(samples),), math.nan)
    evidence: list[dict[str, Any]] = [{"read": None, "unsure": None, "wanted": None} for _ in targets]
    for row, found in zip(rows, read(samples.pixels()[rows]), strict=True):
        text, unsure = _joined(found, min_confidence)
        values[row] = similarity(letters(text), targets[row])
        evidence[row] = {"read": text, "unsure": unsure, "wanted": wanted(samples.prompts[row])}
    return Scores(values, evidence)


def _joined(found: Lines, min_confidence: float) -> tuple[str, str]:
    sure = [text for text, confidence in found if confidence >= min_confidence]
    return " ".join(sure), " ".join(text for text, confidence in found if confidence < min_confidence)
