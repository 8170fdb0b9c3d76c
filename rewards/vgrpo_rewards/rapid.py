"""The OCR engines `rapidocr` and `ppocrv4`: two generations of PP-OCR, both through rapidocr, with the models of two wheels."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgrpo_core import PluginError

from .engines import check_release, need, weights

if TYPE_CHECKING:
    import numpy as np

    from .engines import Engine, Lines, Read

TESTED = "3.10"  # the networks alone are reached through private names
WORD_BATCH = 8  # pictures of a word that fit the processor's caches together
SHIPPED = {
    "rapidocr": ("rapidocr", '"vgrpo[ocr]"', ("PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx")),
    # Only its models are used; what it depends on would put a second OpenCV over the one that rapidocr brings.
    "ppocrv4": (
        "rapidocr_onnxruntime",
        "--no-deps --ignore-requires-python rapidocr-onnxruntime==1.4.4",
        ("ch_PP-OCRv4_det_infer.onnx", "ch_PP-OCRv4_rec_infer.onnx"),
    ),
}
"""The package whose folder `models` has the weights, how to install it, and the files: detector and recogniser."""


def word_reader(engine: Engine, models: Path | None, threads: int) -> Read:
    """Return an engine for pictures of one word each: the recogniser alone, batched, at the pictures' own aspect ratio."""
    # The recogniser widens its input to the widest picture of a batch: a small least width makes short words fast.
    loaded = _rapidocr(engine, models, {"Rec.rec_img_shape": [3, 48, 48], "Rec.rec_batch_num": WORD_BATCH}, detect=False)
    recogniser = loaded._load_rec_model()
    from rapidocr.ch_ppocr_rec.typings import TextRecInput

    def read(images: np.ndarray) -> list[Lines]:
        return [[line] for line in lines(recogniser(TextRecInput(img=_bgr(images))))]

    return in_parallel(read, WORD_BATCH, threads)


def scene_reader(engine: Engine, models: Path | None, longest_side: int, threads: int) -> Read:
    """Return an engine that looks for text anywhere, on pictures shrunk to `longest_side` pixels where they are larger."""
    loaded = _rapidocr(
        engine, models, {"Det.limit_type": "max", "Det.limit_side_len": longest_side, "Global.text_score": 0.0}, detect=True
    )

    def read(images: np.ndarray) -> list[Lines]:
        # rapidocr remembers the flags of its last call: always all three.
        return [lines(loaded(image, use_det=True, use_cls=False, use_rec=True)) for image in _bgr(images)]

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


def _rapidocr(engine: Engine, models: Path | None, params: dict[str, Any], *, detect: bool) -> Any:
    """Load the networks now: rapidocr would load them when it reads the first image, and damaged ones would show only then."""
    check_release("rapidocr", TESTED)
    import rapidocr

    detector, recogniser = _weights(engine, models)
    fixed = {
        "Global.log_level": "error",
        "Det.model_path": str(detector),  # a path is opened; a name might be downloaded
        "Rec.model_path": str(recogniser),
        # Threads of its own would spin while they wait and slow down everything else: see `in_parallel`.
        "EngineConfig.onnxruntime.intra_op_num_threads": 1,
        "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    }
    loaded: Any = rapidocr.RapidOCR(params=fixed | params)
    try:
        loaded._load_rec_model()
        if detect:
            loaded._load_det_model()
    except Exception as error:  # onnxruntime's errors have no public base class
        what = f'reward "ocr": engine = "{engine}" can not load {detector.name} and {recogniser.name} in {detector.parent}'
        raise PluginError(what, str(error), "copy the files again") from error
    return loaded


def _weights(engine: Engine, models: Path | None) -> tuple[Path, Path]:
    package, install, names = SHIPPED[engine]
    folder = need(engine, package, install) / "models" if models is None else models
    return weights(engine, folder, names)


def _bgr(images: np.ndarray) -> list[np.ndarray]:
    """Reverse the channels, as rapidocr wants them."""
    return list(images[..., ::-1].copy())
