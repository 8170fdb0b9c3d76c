"""Detectors of torchvision, such as Mask R-CNN."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vgrpo_core import Asset

from .checkpoint import loading, state_dict
from .coco import labels
from .detectors import Detection, Detector, detections, need

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import torch
    from torch import Tensor

SIZES = {"maskrcnn_resnet50_fpn_v2": 0.18, "fasterrcnn_resnet50_fpn_v2": 0.17}  # in GB


class Torchvision(BaseModel):
    """A detector of torchvision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    use: Literal["torchvision"]
    model: str = Field(default="maskrcnn_resnet50_fpn_v2", description="name of one of its detection models")
    weights: str | None = Field(default=None, description="file with a state dict; default: torchvision's own, trained on COCO")

    def assets(self) -> list[Asset]:
        """List torchvision's weights, unless others are named."""
        licence = "BSD-3-Clause (of the code; none stated for the weights)"
        return [] if self.weights else [Asset(f"torchvision/{self.model}", SIZES.get(self.model, math.nan), licence)]

    def load(self, device: torch.device, dtype: torch.dtype) -> Detector:
        """Load the model, in float32 whatever `dtype` is; a PluginError for weights that are missing or do not fit."""
        need("torchvision", 'the detector "torchvision"', "geneval")
        with loading("geneval", self.weights or f"torchvision/{self.model}"):
            return detector(*self._network(), device)

    def _network(self) -> tuple[Any, dict[int, str]]:
        """Return the model, and the classes of its labels."""
        from torchvision.models import detection, get_model, get_model_weights, list_models

        if self.model not in (known := list_models(detection)):
            raise ValueError(f"its detection models are {', '.join(known)}")
        default = get_model_weights(self.model).DEFAULT
        names = labels(dict(enumerate(default.meta["categories"])))
        if self.weights is None:
            return get_model(self.model, weights=default), names
        model = get_model(self.model, weights=None, weights_backbone=None)
        model.load_state_dict(state_dict("geneval", self.weights))
        return model, names


def detector(model: Any, names: Mapping[int, str], device: torch.device) -> Detector:
    """Wrap a detection model of torchvision whose labels mean `names`."""
    model.to(device).eval().requires_grad_(False)

    def find(images: np.ndarray, above: float) -> list[list[Detection]]:
        import torch

        batch = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float() / 255
        return [_detections(found, names, above) for found in model(list(batch))]

    return Detector(frozenset(names.values()), find)


def _detections(found: Mapping[str, Tensor], names: Mapping[int, str], above: float) -> list[Detection]:
    sure = found["scores"] > above
    labels, scores, boxes = (found[key][sure] for key in ("labels", "scores", "boxes"))
    masks = (found["masks"][sure, 0] > 0.5).cpu().numpy() if "masks" in found else None
    return detections(names, labels, scores, boxes, masks)
