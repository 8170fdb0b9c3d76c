"""Detectors of ultralytics (YOLO). Their licence is AGPL-3.0."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vgrpo_core import Asset

from .checkpoint import loading
from .coco import labels
from .detectors import Detection, Detector, detections, need

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import torch


class Yolo(BaseModel):
    """A detector of ultralytics, with `pip install "vgrpo[yolo]"`; code and weights are under AGPL-3.0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    use: Literal["yolo"]
    model: str = Field(
        default="yolo11x.pt", description="name of published weights or a .pt file; a .pt file can run code: trust it"
    )
    size: int = Field(default=640, ge=32, description="images are scaled to this many pixels on the longer side")

    def assets(self) -> list[Asset]:
        """List the weights, unless a file is named."""
        return [] if Path(self.model).is_file() else [Asset(f"ultralytics/{self.model}", math.nan, "AGPL-3.0")]

    def load(self, device: torch.device, dtype: torch.dtype) -> Detector:
        """Load the model, in float32 whatever `dtype` is; a PluginError without ultralytics or for weights that are no detector."""
        need("ultralytics", 'the detector "yolo"', "yolo")
        _quieten(offline=Path(self.model).is_file())
        from PIL import Image

        opens = Image.open
        from ultralytics.models import YOLO

        setattr(Image, "open", opens)  # noqa: B010 - it puts its own in that place, for the whole process
        with loading("geneval", self.model):
            model = YOLO(self.model)
            names = labels(model.names)
        return Detector(frozenset(names.values()), _Find(model, names, device, self.size))


def _quieten(offline: bool) -> None:
    """Keep ultralytics from installing packages, from writing to the home folder and, with local weights, from the network."""
    os.environ.setdefault("YOLO_AUTOINSTALL", "false")
    os.environ.setdefault("YOLO_CONFIG_DIR", str(Path(tempfile.gettempdir()) / "vgrpo-ultralytics"))
    if offline:
        os.environ.setdefault("YOLO_OFFLINE", "true")


class _Find:
    """Find objects on a batch of images, as `predict` of ultralytics does."""

    def __init__(self, model: Any, names: Mapping[int, str], device: torch.device, size: int) -> None:
        self.model, self.names = model, names
        self.options = {"device": device, "imgsz": size, "verbose": False, "retina_masks": True}

    def __call__(self, images: np.ndarray, above: float) -> list[list[Detection]]:
        pictures = list(images[..., ::-1].copy())  # ultralytics takes arrays for BGR
        return [self._detections(found) for found in self.model.predict(pictures, conf=above, **self.options)]

    def _detections(self, found: Any) -> list[Detection]:
        boxes = found.boxes
        masks = None if found.masks is None else found.masks.data.bool().cpu().numpy()
        return detections(self.names, boxes.cls, boxes.conf, boxes.xyxy, masks)
