"""The OCR engine `easyocr`: CRAFT finds text, a convolutional-recurrent network reads English; on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgrpo_core import PluginError

from .engines import check_release, need, weights

if TYPE_CHECKING:
    import numpy as np

    from .engines import Lines, Read

TESTED = "1.7"
WEIGHTS = ("craft_mlt_25k.pth", "english_g2.pth")


def word_reader(models: Path | None) -> Read:
    """Return an engine for pictures of one word each: the recogniser alone."""
    reader = _easyocr(models, detector=False)
    return one_by_one(lambda image: lines(reader.recognize(_grey(image), reformat=False)))


def scene_reader(models: Path | None, longest_side: int) -> Read:
    """Return an engine that looks for text anywhere, on pictures shrunk to `longest_side` pixels where they are larger."""
    reader = _easyocr(models, detector=True)

    def read(image: np.ndarray) -> Lines:
        # `readtext` takes arrays for BGR, of which the detector then sees the wrong channels.
        level, slanted = reader.detect(image, canvas_size=longest_side, reformat=False)
        return lines(reader.recognize(_grey(image), level[0], slanted[0], reformat=False))

    return one_by_one(read)


def one_by_one(read: Callable[[np.ndarray], Lines]) -> Read:
    """Read each image by itself, and leave torch's random numbers as they are: EasyOCR's data loader draws some."""
    import torch

    def read_all(images: np.ndarray) -> list[Lines]:
        with torch.random.fork_rng(devices=()):
            return [read(image) for image in images]

    return read_all


def lines(found: list[Any]) -> Lines:
    """Put what EasyOCR read in reading order, for it names slanted texts last.

    A text whose middle is above the bottom of the first text of a line belongs to that line.
    """
    rows: list[list[Any]] = []
    for one in sorted(found, key=_middle):
        if rows and _middle(one) < max(y for _, y in rows[-1][0][0]):
            rows[-1].append(one)
        else:
            rows.append([one])
    return [(text, float(confidence)) for row in rows for _, text, confidence in sorted(row, key=_left)]


def _middle(one: Any) -> float:
    return float(sum(y for _, y in one[0])) / len(one[0])


def _left(one: Any) -> float:
    return float(min(x for x, _ in one[0]))


def _grey(image: np.ndarray) -> Any:
    import cv2

    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)


def _easyocr(models: Path | None, *, detector: bool) -> Any:
    need("easyocr", "easyocr", '"vgrpo[easyocr]"')
    check_release("easyocr", TESTED)
    import easyocr

    if models is not None:
        weights("easyocr", models, WEIGHTS)
    place = None if models is None else str(models)
    # Nothing is written outside the folder; what is quantised reads otherwise on other processors.
    options = {
        "model_storage_directory": place,
        "user_network_directory": place,
        "download_enabled": models is None,
        "quantize": False,
    }
    try:
        return easyocr.Reader(["en"], gpu=False, detector=detector, verbose=False, **options)
    except OSError as error:
        fix = f"put {' and '.join(WEIGHTS)} of EasyOCR into a folder and name it as `models`"
        raise PluginError('reward "ocr": engine = "easyocr" can not be loaded', str(error), fix) from error
