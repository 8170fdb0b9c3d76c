"""What rewards that are neural networks share: where they run, in which precision, how many images at a time, how long a text."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from vgrpo_core import Reward

if TYPE_CHECKING:
    import torch

    from vgrpo_core.plugin import Score


class Network(Reward):
    """A reward that loads weights. Its last arithmetic is float32 whatever `dtype` is."""

    device: str | None = Field(default=None, description="where it runs, such as `cuda:1`; default: where the model trains")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(default="float32", description="precision of the weights")
    batch: int = Field(default=32, ge=1, description="images judged at a time")

    def place(self, device: torch.device) -> tuple[torch.device, torch.dtype]:
        """Return where and in which precision to load; `device` is where the model trains."""
        import torch

        return torch.device(self.device) if self.device else device, getattr(torch, self.dtype)


def in_batches(score: Score, size: int) -> Score:
    """Let a scoring function see at most `size` samples at a time."""
    import torch

    from vgrpo_core import Samples, Scores

    def scored(samples: Samples) -> Scores:
        found = [score(part) for part in samples.split(size)]
        parts = [part if isinstance(part, Scores) else Scores(part) for part in found]
        return Scores(torch.cat([part.values for part in parts]), [table for part in parts for table in part.evidence])

    return scored


class Limit:
    """Count the tokens that a text encoder does not read, and say so once."""

    def __init__(self, name: str, tokens: int) -> None:
        self.name, self.tokens, self.said = name, tokens, False

    def check(self, lengths: list[int]) -> None:
        """Warn the first time that some of `lengths`, in tokens, are over the limit."""
        over = [length for length in lengths if length > self.tokens]
        if over and not self.said:
            self.said = True
            what = f"{len(over)} of {len(lengths)} prompts are longer than the {self.tokens} tokens it reads, the longest by"
            warnings.warn(f'reward "{self.name}": {what} {max(over) - self.tokens}; the rest is cut off', stacklevel=2)
