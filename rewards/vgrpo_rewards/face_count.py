"""The reward `face_count`: as many faces are found on the image as the prompt asks for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from vgrpo_core import PluginError, Prompt, Reward

from .networks import in_batches

if TYPE_CHECKING:
    import torch

    from vgrpo_core import Samples, Scores
    from vgrpo_core.plugin import Score

    Face = dict[str, Any]


class FaceCount(Reward):
    """Closeness of the number of faces found to the number asked for: 1 - |found - asked| / max(asked, 1), at least 0.

    Asked for is the whole number `faces` of the prompt's metadata, else the option `count`; without either the score is missing
    (NaN). Evidence: each face with its box and probability. MTCNN (Zhang et al., arXiv 1604.02878) of facenet-pytorch finds them,
    with the weights in its wheel.
    """

    name = "face_count"
    requires: ClassVar[tuple[str, ...]] = ("facenet_pytorch",)
    extra: ClassVar[str] = "--no-deps facenet-pytorch"
    range: ClassVar[str] = "0 to 1"
    device: str | None = Field(default=None, description="where it runs, such as `cuda:1`; default: where the model trains")
    batch: int = Field(default=32, ge=1, description="images judged at a time")
    count: int | None = Field(default=None, ge=0, description="faces asked for by prompts that do not say `faces`")
    strict: bool = Field(default=False, description="1 for the right number and 0 for any other")
    min_confidence: float = Field(default=0.9, ge=0, le=1, description="faces less probable than this do not count")
    min_size: int = Field(default=20, ge=12, description="side of the smallest face that is looked for, in pixels")

    def load(self, device: torch.device) -> Score:
        """Load MTCNN and return the scoring function: float32 [B] in [0, 1], and evidence.

        A `faces` that is no whole number is a PluginError.
        """
        import torch

        find = _mtcnn(torch.device(self.device) if self.device else device, self.min_size)
        return in_batches(lambda samples: self._score(samples, find), self.batch)

    def _score(self, samples: Samples, find: Any) -> Scores:
        from vgrpo_core import Scores

        wanted = {row: asked for row, prompt in enumerate(samples.prompts) if (asked := self._wanted(prompt)) is not None}
        values, evidence = samples.images.new_full((len(samples),), math.nan), list[dict[str, Any]]([{} for _ in samples.prompts])
        faces = find(samples.pixels()[list(wanted)]) if wanted else []
        for (row, asked), found in zip(wanted.items(), faces, strict=True):
            sure = [face for face in found if face["probability"] >= self.min_confidence]
            values[row] = self._closeness(len(sure), asked)
            evidence[row] = {"asked": asked, "faces": sure}
        return Scores(values, evidence)

    def _closeness(self, found: int, asked: int) -> float:
        return float(found == asked) if self.strict else max(0.0, 1 - abs(found - asked) / max(asked, 1))

    def _wanted(self, prompt: Prompt) -> int | None:
        asked = prompt.metadata.get("faces", self.count)
        if asked is not None and (not isinstance(asked, int) or isinstance(asked, bool) or asked < 0):
            what = f'reward "face_count": `faces` of the prompt {prompt.text!r} is {asked!r}'
            raise PluginError(what, fix="write a whole number, 0 or more")
        return asked


def _mtcnn(device: torch.device, min_size: int) -> Any:
    """Return the function that finds faces on images, uint8 RGB [B, H, W, 3]: most probable first, boxes in pixels."""
    try:
        from facenet_pytorch import MTCNN
    except ModuleNotFoundError as error:
        what = f'reward "face_count": facenet-pytorch needs {error.name}, which is not installed'
        raise PluginError(what, fix=f"Run: pip install {error.name}") from error
    network = MTCNN(keep_all=True, select_largest=False, min_face_size=min_size, device=device)

    def find(images: Any) -> list[list[Face]]:
        return [_faces(boxes, sure) for boxes, sure in zip(*network.detect(images), strict=True)]

    return find


def _faces(boxes: Any, probabilities: Any) -> list[Face]:
    """List the faces of one image; MTCNN says None for none."""
    rows = [] if boxes is None else zip(boxes, probabilities, strict=True)
    return [{"box": [round(float(side), 1) for side in box], "probability": float(sure)} for box, sure in rows]
