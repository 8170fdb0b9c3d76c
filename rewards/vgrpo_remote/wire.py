"""What goes over the wire: JSON, with images as base64 PNG. Nothing that could run code is ever unpacked.

8-bit PNG is exactly `samples.pixels()`: a served reward sees each image rounded to 8 bits, and nothing else is lost.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from vgrpo_core import PluginError, Prompt

if TYPE_CHECKING:
    import numpy as np

    from vgrpo_core import Samples, Scores

PROTOCOL = 1


class Malformed(ValueError):
    """A message that is not what the protocol says."""


class TooLarge(ValueError):
    """A request over a limit of the server."""


class Message(BaseModel):
    """A JSON object of fixed types; an answer may hold more than is read."""

    model_config = ConfigDict(frozen=True, strict=True)


M = TypeVar("M", bound=Message)


class Limits(Message):
    """What one request may hold."""

    images: int = Field(default=64, ge=1)
    size: int = Field(default=256 * 2**20, ge=1)
    """Bytes of the request, and bytes of its images unpacked."""


class Description(Message):
    """What `GET /describe` answers: what is served, and how it is set."""

    protocol: int
    reward: str
    class_name: str
    distribution: str
    version: str
    options: dict[str, Any]
    """Every option with its value."""
    defaults: dict[str, Any]
    """Every option that may be left out, with the value it has then."""
    range: str
    text_limit: int | None
    limits: Limits


class Sample(Message):
    """One image with its prompt."""

    model_config = ConfigDict(extra="forbid")

    prompt: str
    metadata: dict[str, Any] = {}
    tags: list[str] = []
    image: str
    """PNG, 8-bit RGB, in base64."""


class Request(Message):
    """What `POST /score` takes: samples whose images have one size."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1, max_length=64)
    samples: list[Sample] = Field(min_length=1)


class Answer(Message):
    """What `POST /score` answers: one value a sample, null where missing, and evidence on each or none."""

    id: str
    values: list[float | None]
    evidence: list[dict[str, Any]] = []


def parse(kind: type[M], body: bytes) -> M:
    """Read a message; one that is malformed is a Malformed that says where."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise Malformed(f"{place}: {first['msg']}" if place else first["msg"]) from error


def pack(name: str, samples: Samples) -> bytes:
    """Write the request `name`; metadata that JSON does not hold is a PluginError."""
    rows = ",".join(_row(prompt, image) for prompt, image in zip(samples.prompts, samples.pixels(), strict=True))
    return f'{{"id":{json.dumps(name)},"samples":[{rows}]}}'.encode()


def _row(prompt: Prompt, image: np.ndarray) -> str:
    row = {"prompt": prompt.text, "metadata": dict(prompt.metadata), "tags": sorted(prompt.tags), "image": encode(image)}
    try:
        return json.dumps(row, allow_nan=False)
    except (TypeError, ValueError) as error:
        what = f"the metadata of the prompt {prompt.text!r} can't be sent to a remote reward"
        raise PluginError(what, str(error), "Keep to what JSON holds.") from error


def unpack(request: Request, limits: Limits) -> Samples:
    """Return the samples of a request: images float32 [B, 3, H, W] in [0, 1], contiguous, on the CPU."""
    import numpy as np
    import torch

    from vgrpo_core import Samples

    if len(request.samples) > limits.images:
        raise TooLarge(f"{len(request.samples)} images, and a request may hold {limits.images}")
    most = limits.size // len(request.samples)
    images = [decode(sample.image, most, f"samples.{row}.image") for row, sample in enumerate(request.samples)]
    if len({image.shape for image in images}) > 1:
        raise Malformed("samples: the images of a request must have one size")
    # As `samples.images` is where it was made: a sum over another layout may differ in its last bit.
    stacked = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    prompts = tuple(Prompt(sample.prompt, sample.metadata, frozenset(sample.tags)) for sample in request.samples)
    return Samples(prompts, stacked.float() / 255)


def answer(name: str, scores: Scores) -> bytes:
    """Write the answer to the request `name`; evidence that JSON does not hold is a ValueError."""
    content = {"id": name, "values": scores.values.tolist(), "evidence": list(scores.evidence)}
    return to_json(content, inf_nan_mode="null")


def join(answers: Sequence[Answer]) -> Scores:
    """Put answers together: float64 [B], so that no digit is lost, with NaN where a value is missing."""
    import torch

    from vgrpo_core import Scores

    values = [math.nan if value is None else value for each in answers for value in each.values]
    evidence: list[Mapping[str, Any]] = [table for each in answers for table in each.evidence]
    return Scores(torch.tensor(values, dtype=torch.float64), evidence)


def encode(image: np.ndarray) -> str:
    """Write uint8 RGB [H, W, 3] as PNG in base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG", compress_level=0)  # to compress takes longer than it saves on a local network
    return base64.b64encode(file.getvalue()).decode("ascii")


def decode(text: str, most: int, place: str) -> np.ndarray:
    """Read a PNG in base64: uint8 RGB [H, W, 3]; one over `most` bytes is refused before it is unpacked."""
    import numpy as np
    from PIL import Image

    try:
        with Image.open(io.BytesIO(base64.b64decode(text, validate=True)), formats=["PNG"]) as image:
            mode, size = image.mode, image.size
            if mode == "RGB" and 3 * math.prod(size) <= most:
                return np.asarray(image)
    except Exception as error:  # Pillow has a dozen ways to say that a file is broken
        raise Malformed(f"{place}: not a PNG in base64: {error}") from error
    if mode != "RGB":
        raise Malformed(f"{place}: the PNG is {mode}, not RGB")
    raise TooLarge(f"{place}: {size[0]} x {size[1]} pixels; the images of this request may have {most // 3} each")
