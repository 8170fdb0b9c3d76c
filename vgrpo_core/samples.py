"""What every reward is given: prompts and images of one checked form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .plugin import Prompt


@dataclass(frozen=True)
class Samples:
    """Pair prompts with images: float32 RGB [B, 3, H, W] in [0, 1]; anything else is a TypeError or ValueError."""

    prompts: tuple[Prompt, ...]
    images: Tensor

    def __post_init__(self) -> None:
        """Check types, shape and range."""
        if not all(isinstance(p, Prompt) for p in self.prompts):
            raise TypeError("Samples.prompts must hold Prompt objects")
        found = getattr(self.images, "dtype", None)
        if not isinstance(self.images, Tensor) or self.images.dtype != torch.float32:
            raise TypeError(f"Samples.images must be a float32 tensor, not {type(self.images).__name__} {found or ''}")
        if self.images.shape != (len(self.prompts), 3, *self.images.shape[2:]) or self.images.ndim != 4:
            raise ValueError(f"Samples.images must be [{len(self.prompts)}, 3, H, W], not {list(self.images.shape)}")
        if len(self) and not bool((self.images >= 0).logical_and(self.images <= 1).all()):
            raise ValueError("Samples.images must lie in [0, 1]")

    def __len__(self) -> int:
        """Count the samples."""
        return len(self.prompts)

    def pixels(self) -> np.ndarray:
        """Round to 8 bits: uint8 RGB [B, H, W, 3]."""
        return self.images.mul(255).round().byte().permute(0, 2, 3, 1).cpu().numpy()

    def split(self, size: int) -> Iterator[Samples]:
        """Yield parts of at most `size` samples."""
        for start in range(0, len(self), size):
            yield Samples(self.prompts[start : start + size], self.images[start : start + size])


class Scores(NamedTuple):
    """What a reward returns that can say what its numbers were made from."""

    values: Tensor
    """Float [B], NaN where missing."""
    evidence: Sequence[Mapping[str, Any]] = ()
    """One table a sample, ready for JSON: the text that was read, the boxes that were found, ...; or none at all."""
