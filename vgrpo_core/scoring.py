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
    from .plugin import Prompt
    from .recipe import RewardEntry


@dataclass
class Judge:
    """A loaded reward of a recipe. A monitor's failure leaves a gap; a training reward's failure ends the run."""

    label: str
    source: str
    """How messages name it, such as `reward "ocr" (vgrpo 0.1.0)`."""
    score: Callable[[Samples], Tensor | Scores]
    monitor: bool = False
    on: tuple[str, ...] = ()
    failures: list[str] = field(default_factory=list)

    def judges(self, prompt: Prompt) -> bool:
        """Tell whether a prompt is one that it judges."""
        return not self.on or not prompt.tags.isdisjoint(self.on)

    def examine(self, samples: Samples) -> Scores:
        """Score the samples that it judges: float64 on the CPU, NaN where missing (a non-finite score is missing).

        What the numbers were made from comes along where the reward says so.
        """
        rows = [row for row, prompt in enumerate(samples.prompts) if self.judges(prompt)]
        if len(rows) == len(samples):
            return self._examine(samples)
        values, evidence = torch.full((len(samples),), torch.nan, dtype=torch.float64), [dict[str, Any]() for _ in samples.prompts]
        if rows:
            found = self._examine(Samples(tuple(samples.prompts[row] for row in rows), samples.images[rows]))
            values[rows] = found.values
            for row, table in zip(rows, found.evidence, strict=False):
                evidence[row] = dict(table)
        return Scores(values, evidence)

    def _examine(self, samples: Samples) -> Scores:
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


def asked(judges: Sequence[Judge], prompts: Sequence[Prompt], scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Keep the scores of the prompts that each judge judges."""
    return {judge.label: scores[judge.label][[judge.judges(prompt) for prompt in prompts]] for judge in judges}


def scaled(scores: Mapping[str, Tensor], entries: Sequence[RewardEntry]) -> dict[str, Tensor]:
    """Apply each reward's scale and offset; where its gate does not hold a score is missing."""
    return {
        entry.label: (entry.scale * scores[entry.label] + entry.offset).where(
            entry.gate.holds(scores[entry.gate.reward]) if entry.gate else torch.tensor(True), torch.nan
        )
        for entry in entries
    }


def load(entry: RewardEntry, device: torch.device, *, monitor: bool = False) -> Judge:
    """Load a reward of a recipe."""
    return Judge(entry.label, f'reward "{entry.label}" ({entry.offer.source})', entry.plugin.load(device), monitor, entry.on)
