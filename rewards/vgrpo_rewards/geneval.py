"""The reward `geneval`: the objects that the prompt asks for are there, in number, colour and place."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from vgrpo_core import PluginError
from vgrpo_core.errors import nearest

from .checkpoint import assets, loading
from .clauses import Class, Rule, Task, judge
from .clip import TOKENS, load_clip
from .coco import KNOWN
from .colours import Crop, Name, by_clip, by_pixels
from .detect_torchvision import Torchvision
from .detect_transformers import Transformers
from .detect_yolo import Yolo
from .detectors import Detection, Detector, keep
from .networks import Limit, Network, in_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    import torch

    from vgrpo_core import Asset, Samples, Scores
    from vgrpo_core.plugin import Score

Found = dict[str, list[Detection]]


class Probe(BaseModel):
    """A picture to try the detector on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = Field(description="file of a picture")
    finds: Class = Field(description="class that must be found on it")


class GenEval(Network):
    """Whether the objects that the prompt asks for are found on the image, in the right number, colour and place.

    Asked for is what the prompt's metadata has under `include`, as in GenEval's rows; a prompt without it is missing (NaN).
    Evidence: all objects found, and each clause with what of it holds. Source: Ghosh et al., arXiv 2310.11513.
    """

    name = "geneval"
    range: ClassVar[str] = "0 or 1; graded: at most 1"
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="precision of CLIP and of a detector of transformers; the others are float32"
    )
    rule: Rule = Field(
        default="strict", description="strict: all clauses or nothing; graded: partial credit; benchmark: as GenEval"
    )
    detector: Annotated[Transformers | Torchvision | Yolo, Field(discriminator="use")] = Field(
        default_factory=Transformers, description="what finds objects; `use` is `transformers`, `torchvision` or `yolo`"
    )
    confidence: float = Field(default=0.3, ge=0, lt=1, description="objects must be more certain than this")
    counting_confidence: float = Field(default=0.9, ge=0, lt=1, description="likewise, for prompts tagged `counting`")
    most: int = Field(default=16, ge=1, description="objects of a class that are looked at, the most certain ones")
    colors: Literal["clip", "pixels"] = Field(
        default="clip", description="what names colours: CLIP, as in the benchmark, or the object's pixels"
    )
    clip: str = Field(default="openai/clip-vit-large-patch14", description="CLIP for colours: hub id or folder")
    probe: Probe | None = Field(default=None, description="a picture to try the detector on when it is loaded")

    def assets(self) -> Sequence[Asset]:
        """List detector and CLIP, unless they are on disk."""
        return [*self.detector.assets(), *(assets(self.clip) if self.colors == "clip" else ())]

    def load(self, device: torch.device) -> Score:
        """Load detector and CLIP and return the scoring function: float32 [B], and evidence.

        A checkpoint that can't be used, or a detector that fails the probe, is a PluginError.
        """
        place = self.place(device)
        detector = self.detector.load(*place)
        if self.probe:
            self._try(detector, self.probe)
        name = by_pixels if self.colors == "pixels" else by_clip(load_clip(self.clip, self.clip, *place, Limit(self.name, TOKENS)))
        return in_batches(lambda samples: self.score(samples, detector, name), self.batch)

    def score(self, samples: Samples, detector: Detector, name: Name) -> Scores:
        """Judge samples by what a detector finds and how their colours are named."""
        from vgrpo_core import Scores

        tasks = {row: task for row, prompt in enumerate(samples.prompts) if (task := Task.of(prompt))}
        _check(tasks.values(), detector)
        images = samples.pixels()
        found = self._find(images, tasks, detector)
        self._color(images, tasks, found, name)
        values, evidence = samples.images.new_full((len(samples),), math.nan), list[dict[str, Any]]([{} for _ in samples.prompts])
        for row, task in tasks.items():
            values[row], clauses = judge(task, found[row], self.rule)
            evidence[row] = {"clauses": clauses, "found": [one.evidence() for group in found[row].values() for one in group]}
        return Scores(values, evidence)

    def _find(self, images: np.ndarray, tasks: dict[int, Task], detector: Detector) -> dict[int, Found]:
        """Find the objects on the images of tasks."""
        if not tasks:
            return {}
        above = {row: self.counting_confidence if task.tag == "counting" else self.confidence for row, task in tasks.items()}
        found = detector.find(images[list(tasks)], min(above.values()))
        return {row: keep(one, above[row], self.most) for row, one in zip(tasks, found, strict=True)}

    def _color(self, images: np.ndarray, tasks: dict[int, Task], found: dict[int, Found], name: Name) -> None:
        """Name the colours that decide a clause, those of all images at once."""
        colored = [(row, clause) for row, task in tasks.items() for clause in task.include if clause.color]
        asked = [
            (one, Crop.of(images[row], one, clause.word))
            for row, clause in colored
            for one in clause.considered(found[row].get(clause.label, ()), self.rule) or ()
        ]
        for (one, _), color in zip(asked, name([crop for _, crop in asked]), strict=True):
            one.color = color

    def _try(self, detector: Detector, probe: Probe) -> None:
        import numpy as np
        from PIL import Image

        with loading(self.name, probe.image), Image.open(probe.image) as picture:
            image = np.asarray(picture.convert("RGB"))
        found = keep(detector.find(image[None], self.confidence)[0], self.confidence, self.most)
        if KNOWN[probe.finds] not in found:
            what = f'reward "geneval": the detector finds no {probe.finds} on "{probe.image}"'
            why = f"it finds {', '.join(found) or 'nothing'}"
            raise PluginError(what, why, "check that the weights are a trained detector's, and that the picture shows one")


def _check(tasks: Iterable[Task], detector: Detector) -> None:
    """Refuse prompts that ask for what a detector does not know, and so would never find."""
    for clause in (clause for task in tasks for clause in (*task.include, *task.exclude)):
        if clause.label not in detector.labels:
            what = f'reward "geneval": the detector does not know the class "{clause.word}"{nearest(clause.word, detector.labels)}'
            raise PluginError(what, fix="use another detector, or leave out such prompts")
