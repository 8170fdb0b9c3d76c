"""What an object detector is: a function from images to boxes with a class of COCO and a confidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from typing import TYPE_CHECKING, Any

from vgrpo_core import PluginError

from .geometry import Box

if TYPE_CHECKING:
    import numpy as np


@dataclass
class Detection:
    """An object on an image."""

    label: str
    """A class of COCO."""
    confidence: float
    box: Box
    mask: np.ndarray | None = None
    """Bool [H, W] of the whole image, from a detector that segments."""
    color: str | None = None
    """Told only where a prompt asks for it."""

    def evidence(self) -> dict[str, Any]:
        """Say what it is, ready for JSON."""
        told = {"color": self.color} if self.color else {}
        return {"class": self.label, "confidence": self.confidence, "box": [round(side, 1) for side in self.box]} | told


@dataclass(frozen=True)
class Detector:
    """A loaded detector."""

    labels: frozenset[str]
    """The classes of COCO that it knows."""
    find: Callable[[np.ndarray, float], list[list[Detection]]]
    """From images, uint8 RGB [B, H, W, 3], and a confidence to the objects on each of them; less certain ones may be left out."""


def keep(found: Sequence[Detection], above: float, most: int) -> dict[str, list[Detection]]:
    """Group by class, most confident first, what is more confident than `above`: at most `most` of each class."""
    ordered = sorted((one for one in found if one.confidence > above), key=lambda one: (one.label, -one.confidence))
    return {label: list(group)[:most] for label, group in groupby(ordered, key=lambda one: one.label)}


def detections(
    names: Mapping[int, str], labels: Any, scores: Any, boxes: Any, masks: Iterable[np.ndarray] | None = None
) -> list[Detection]:
    """Put together what a model says of one image, tensors [N] and [N, 4]; labels that are not in `names` are left out."""
    rows = zip(labels.tolist(), scores.tolist(), boxes.tolist(), [None] * len(labels) if masks is None else masks, strict=True)
    return [Detection(names[int(label)], score, tuple(box), mask) for label, score, box, mask in rows if int(label) in names]


def need(module: str, what: str, extra: str) -> None:
    """Raise a PluginError that says what to install unless `module` is there."""
    if find_spec(module) is None:
        raise PluginError(f'reward "geneval": {what} needs {module}, which is not installed', f'Run: pip install "vgrpo[{extra}]"')
