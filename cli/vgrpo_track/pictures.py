"""What is logged in an iteration: numbers, and held-out images in the way that each tracker takes them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vgrpo_core.events import Evaluated

if TYPE_CHECKING:
    from PIL.Image import Image

    Picture = tuple[str, Image]

IMAGES = "eval/images"


def log(name: str, tracker: Any, values: Mapping[str, float], step: int, evaluated: Evaluated | None) -> None:
    """Log numbers and the images of an evaluation, if there was one, each with its prompt.

    Comet, MLflow and DVCLive get the numbers alone: accelerate's classes for them have no images.
    """
    shown = _pictures(evaluated) if evaluated else []
    tagged = {f"{IMAGES}/{index:02d}": picture for index, picture in enumerate(shown)}
    if name in ("tensorboard", "clearml"):
        _log_arrays(name, tracker, tagged, step)
    elif name == "aim":
        tracker.log_images({tag: (image, prompt) for tag, (prompt, image) in tagged.items()}, step)
    tracker.log({**values, **_captioned(name, tagged)}, step)


def _log_arrays(name: str, tracker: Any, tagged: Mapping[str, Picture], step: int) -> None:
    """Log images under their prompts, for trackers that have no captions."""
    import numpy as np

    for tag, (prompt, image) in tagged.items():
        pixels = np.asarray(image)
        if name == "tensorboard":
            tracker.log_images({f"{tag} {prompt}": pixels[None]}, step, dataformats="NHWC")
        else:
            tracker.log_images({f"{tag} {prompt}": pixels}, step)


def _captioned(name: str, tagged: Mapping[str, Picture]) -> dict[str, Any]:
    """Wrap images, with their prompts as captions, for trackers that log them as they log numbers."""
    if not tagged or name not in ("wandb", "swanlab", "trackio"):
        return {}
    wrap = importlib.import_module(name).Image
    images = {tag: wrap(image, caption=prompt) for tag, (prompt, image) in tagged.items()}
    return images if name == "trackio" else {IMAGES: [*images.values()]}


def _pictures(evaluated: Evaluated) -> list[Picture]:
    """Return prompts, each on one line, and images."""
    from PIL import Image

    from vgrpo_core import Samples

    images = map(Image.fromarray, Samples(evaluated.prompts, evaluated.images).pixels())
    return [(" ".join(prompt.text.split()), image) for prompt, image in zip(evaluated.prompts, images, strict=True)]
