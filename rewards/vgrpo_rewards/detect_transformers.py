"""Detectors of transformers: Mask2Former, and whatever `AutoModelForObjectDetection` loads (DETR, RT-DETR, D-FINE, ...)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from vgrpo_core import PluginError

from .checkpoint import assets, loading
from .coco import labels
from .detectors import Detection, Detector, detections, need

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import torch
    from torch import Tensor

    from vgrpo_core import Asset

    from .geometry import Box


class Transformers(BaseModel):
    """A detector of transformers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    use: Literal["transformers"] = "transformers"
    model: str = Field(default="PekingU/rtdetr_r50vd", description="hub id or folder")

    def assets(self) -> list[Asset]:
        """List the checkpoint, unless it is a folder."""
        return assets(self.model)

    def load(self, device: torch.device, dtype: torch.dtype) -> Detector:
        """Load model and processor; a PluginError for a checkpoint that is missing, incomplete or no detector of COCO."""
        from transformers import AutoConfig, AutoImageProcessor, AutoModelForObjectDetection, AutoModelForUniversalSegmentation
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        with loading("geneval", self.model):
            config = AutoConfig.from_pretrained(self.model)
            names = labels(config.id2label)
            if segments := config.model_type == "mask2former":
                need("scipy", "Mask2Former", "geneval")
            # Transformers would choose another resampling where torchvision is installed: other pixels, other boxes.
            processor = AutoImageProcessor.from_pretrained(self.model, backend="pil")  # type: ignore[no-untyped-call]
            auto = AutoModelForUniversalSegmentation if segments else AutoModelForObjectDetection
            model, info = auto.from_pretrained(self.model, dtype=dtype, output_loading_info=True)
            _refuse_random(model, info["missing_keys"])
        model.to(device).eval().requires_grad_(False)
        return Detector(frozenset(names.values()), _Find(model, processor, names, segments))


def _refuse_random(model: torch.nn.Module, missing: set[str]) -> None:
    """Refuse a checkpoint without some of the weights, for transformers would invent them; buffers it computes."""
    if lacking := sorted(missing & {name for name, _ in model.named_parameters()}):
        raise ValueError(f"it lacks {len(lacking)} of the weights, such as {lacking[0]}")


def _refuse_nan(logits: Tensor) -> None:
    """Refuse numbers that overflowed, for the library would take them for an image without objects."""
    if not bool(logits.isfinite().all()):
        what = f'reward "geneval": the detector\'s outputs are not finite in {str(logits.dtype).removeprefix("torch.")}'
        raise PluginError(what, fix='set dtype = "float32"')


class _Find:
    """Find objects on a batch of images: the processor's own way to the network and back."""

    def __init__(self, model: Any, processor: Any, names: Mapping[int, str], segments: bool) -> None:
        self.model, self.processor, self.names, self.segments = model, processor, names, segments

    def __call__(self, images: np.ndarray, above: float) -> list[list[Detection]]:
        inputs = self.processor(images=list(images), return_tensors="pt").to(self.model.device)
        outputs = self.model(**inputs.to(self.model.dtype))
        _refuse_nan(outputs.class_queries_logits if self.segments else outputs.logits)
        size = (int(images.shape[1]), int(images.shape[2]))
        return self._segments(outputs, above, size) if self.segments else self._boxes(outputs, above, size)

    def _boxes(self, outputs: Any, above: float, size: tuple[int, int]) -> list[list[Detection]]:
        outputs.logits, outputs.pred_boxes = outputs.logits.float().cpu(), outputs.pred_boxes.float().cpu()
        found = self.processor.post_process_object_detection(outputs, above, [size] * len(outputs.logits))
        return [detections(self.names, one["labels"], one["scores"], one["boxes"]) for one in found]

    def _segments(self, outputs: Any, above: float, size: tuple[int, int]) -> list[list[Detection]]:
        rows = zip(outputs.class_queries_logits, outputs.masks_queries_logits, strict=True)
        return [self._segment(*strongest(logits, masks, above), above, size) for logits, masks in rows]

    def _segment(self, logits: Tensor, masks: Tensor, above: float, size: tuple[int, int]) -> list[Detection]:
        from transformers.models.mask2former.modeling_mask2former import Mask2FormerForUniversalSegmentationOutput as Output

        outputs = Output(class_queries_logits=logits[None], masks_queries_logits=masks[None])
        process = self.processor.post_process_instance_segmentation
        found = process(outputs, threshold=above, target_sizes=[size], return_binary_maps=True)[0]
        maps = found["segmentation"].bool().numpy()  # not a stack of maps where nothing was found, but then nothing is read
        return [
            Detection(self.names[info["label_id"]], info["score"], bounds(mask), mask)
            for info, mask in zip(found["segments_info"], maps, strict=False)
            if info["label_id"] in self.names
        ]


def strongest(logits: Tensor, masks: Tensor, above: float) -> tuple[Tensor, Tensor]:
    """Keep as many queries of Mask2Former as can matter above a confidence, on the CPU as its post-processing wants them.

    Post-processing scores as many pairs of query and class as there are queries, and resizes a mask for each. A query has fewer
    than 1 / `above` classes over `above`, so that none of them is lost.
    """
    best = logits.float().softmax(-1)[:, :-1].amax(-1)
    count = int((best > above).sum()) * (int(1 / above) if above else len(best))
    rows = best.topk(max(1, min(count, len(best)))).indices
    return logits[rows].float().cpu(), masks[rows].float().cpu()


def bounds(mask: np.ndarray) -> Box:
    """Return the box around a mask that is not empty, right and bottom exclusive."""
    import numpy as np

    ys, xs = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return float(xs[0]), float(ys[0]), float(xs[-1]) + 1, float(ys[-1]) + 1
