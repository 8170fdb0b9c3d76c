"""The OCR engine: PP-OCR through rapidocr, whose models are in its wheel.

An engine is a function from images, uint8 RGB [B, H, W, 3], to what is written on each: its texts in reading order, each with a
confidence in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgrpo_core import PluginError

if TYPE_CHECKING:
    import numpy as np

    Lines = list[tuple[str, float]]
    Read = Callable[[np.ndarray], list[Lines]]

TESTED = "3.10"  # the recogniser alone is reached through private names
WORD_BATCH = 8  # pictures of a word that fit the processor's caches together


def word_reader(threads: int) -> Read:
    """Return an engine for pictures of one word each: the recogniser alone, batched, at the pictures' own aspect ratio."""
    # The recogniser widens its input to the widest picture of a batch: a small least width makes short words fast.
    recogniser = _rapidocr({"Rec.rec_img_shape": [3, 48, 48], "Rec.rec_batch_num": WORD_BATCH})._load_rec_model()
    from rapidocr.ch_ppocr_rec.typings import TextRecInput

    def read(images: np.ndarray) -> list[Lines]:
        return [[line] for line in lines(recogniser(TextRecInput(img=_bgr(images))))]

    return in_parallel(read, WORD_BATCH, threads)


def scene_reader(threads: int, longest_side: int) -> Read:
    """Return an engine that looks for text anywhere, on pictures shrunk to `longest_side` pixels where they are larger."""
    engine = _rapidocr({"Det.limit_type": "max", "Det.limit_side_len": longest_side, "Global.text_score": 0.0})

    def read(images: np.ndarray) -> list[Lines]:
        # rapidocr remembers the flags of its last call: always all three.
        return [lines(engine(image, use_det=True, use_cls=False, use_rec=True)) for image in _bgr(images)]

    return in_parallel(read, 1, threads)


def lines(result: Any) -> Lines:
    """Return what rapidocr read; it has several ways to say that there is nothing."""
    return list(zip(result.txts, map(float, result.scores), strict=True)) if result.txts else []


def in_parallel(read: Read, batch: int, threads: int) -> Read:
    """Give `read` batches of images, `threads` at a time."""

    def read_all(images: np.ndarray) -> list[Lines]:
        batches = [images[first : first + batch] for first in range(0, len(images), batch)]
        with ThreadPoolExecutor(threads) as pool:
            return [found for part in pool.map(read, batches) for found in part]

    return read_all


def _rapidocr(params: dict[str, Any]) -> Any:
    installed = version("rapidocr")
    if not f"{installed}.".startswith(f"{TESTED}."):
        raise PluginError(f'reward "ocr" works with rapidocr {TESTED}, not {installed}', fix=f"pip install 'rapidocr=={TESTED}.*'")
    import rapidocr

    models = Path(rapidocr.__file__).parent / "models"
    fixed = {
        "Global.log_level": "error",
        "Det.model_path": str(models / "PP-OCRv6_det_small.onnx"),  # a path is opened; a name might be downloaded
        "Rec.model_path": str(models / "PP-OCRv6_rec_small.onnx"),
        # Threads of its own would spin while they wait and slow down everything else: see `in_parallel`.
        "EngineConfig.onnxruntime.intra_op_num_threads": 1,
        "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    }
    return rapidocr.RapidOCR(params=fixed | params)


def _bgr(images: np.ndarray) -> list[np.ndarray]:
    """Reverse the channels, as rapidocr wants them."""
    return list(images[..., ::-1].copy())
