"""Scoring: the one door between a reward plugin's function and the run. A number comes out, or missing; never a made-up one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .errors import RunError, VgrpoError
from .samples import Samples, Scores

if TYPE_CHECKING:
    from .recipe import RewardEntry


@dataclass
class Judge:
    """A loaded reward of a recipe. A monitor's failure leaves a gap; a training reward's failure ends the run."""

    label: str
    source: str
    """How messages name it, such as `reward "ocr" (vgrpo 0.1.0)`."""
    score: Callable[[Samples], Tensor | Scores]
    monitor: bool = False
    failures: list[str] = field(default_factory=list)

    def __call__(self, samples: Samples) -> Tensor:
        """Score samples: float64 [B] on the CPU, NaN where missing (a non-finite score is missing)."""
        return self.examine(samples).values

    def examine(self, samples: Samples) -> Scores:
        """Score samples, and keep what the numbers were made from where the reward says so."""
        evidence: Sequence[Mapping[str, Any]] = ()
        try:
            with torch.no_grad():
                found = self.score(samples)
            values, evidence = found if isinstance(found, Scores) else (found, ())
            values = self._checked(values, len(samples))
            if evidence and len(evidence) != len(samples):
                raise ValueError(f"returned evidence on {len(evidence)} of {len(samples)} samples")
        except Exception as error:
            if not self.monitor:
                raise error if isinstance(error, VgrpoError) else self._failure(error, samples) from error
            self.failures.append(f"{type(error).__name__}: {error}")
            values, evidence = torch.full((len(samples),), torch.nan, dtype=torch.float64), ()
        return Scores(values.where(values.isfinite(), torch.nan), evidence)

    def _checked(self, values: object, count: int) -> Tensor:
        values = torch.as_tensor(values).detach().cpu().double()
        if values.shape != (count,):
            raise ValueError(f"returned shape {list(values.shape)} for {count} samples")
        return values

    def _failure(self, error: Exception, samples: Samples) -> VgrpoError:
        first = samples.prompts[0].text if len(samples) else ""
        return RunError(f"{self.source} failed on {len(samples)} samples, first prompt {first!r}: {type(error).__name__}: {error}")


def load(entry: RewardEntry, device: torch.device, *, monitor: bool = False) -> Judge:
    """Load a reward of a recipe."""
    source = f'reward "{entry.label}" ({entry.offer.source})'
    return Judge(entry.label, source, entry.plugin.load(device), monitor)
