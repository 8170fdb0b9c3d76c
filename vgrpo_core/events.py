"""What a run tells whoever listens: the command prints it, a notebook may plot it. The core itself prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from .plugin import Prompt

Metrics = dict[str, float | None]


@dataclass(frozen=True)
class Started:
    """Models and rewards are loaded and the run folder exists; `iteration` is the last one already done."""

    folder: Path
    iteration: int
    iterations: int


@dataclass(frozen=True)
class Iterated:
    """An iteration is done; `metrics` is its line of metrics.jsonl."""

    metrics: Metrics


@dataclass(frozen=True)
class Evaluated:
    """Held-out prompts were drawn and judged; `images` [N, 3, H, W] of the first prompts, the same every time.

    `judged` float64 [N] are their scores by label, NaN where missing, `evidence` N tables of what the scores were made from.
    """

    iteration: int
    scores: Mapping[str, float | None]
    prompts: tuple[Prompt, ...]
    images: Tensor
    judged: Mapping[str, Tensor] = field(default_factory=dict)
    evidence: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """A checkpoint is complete."""

    iteration: int
    folder: Path


@dataclass(frozen=True)
class Warned:
    """Something that did not stop the run and should be known."""

    message: str


Event = Started | Iterated | Evaluated | Saved | Warned
Listener = Callable[[Event], None]
