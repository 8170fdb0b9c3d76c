"""Draw a recipe's held-out prompts with some weights and let its rewards and monitors judge them, as a run's evaluation does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from vgrpo_core import Policy, Samples, Scores
from vgrpo_core.prompts import load_prompts
from vgrpo_core.recipe import Recipe
from vgrpo_core.rollout import Draws, draws, sample
from vgrpo_core.scoring import Judge, load

Evidence = Mapping[str, Any]


class Found(NamedTuple):
    """What one judge says: float64 [B], NaN where missing, and a table an image, empty where it says nothing."""

    scores: np.ndarray
    evidence: Sequence[Evidence]


class Bench:
    """The judges of a recipe, loaded once, and the images that they have to judge."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe = recipe
        self.rows: Draws = draws(recipe.eval.seed, "eval", load_prompts(recipe.eval.prompts), recipe.eval.samples)
        trained = [load(entry, device) for entry in recipe.rewards]
        self.judges = [*trained, *(load(entry, device, monitor=True) for entry in recipe.eval.rewards)]

    @property
    def prompts(self) -> np.ndarray:
        """Return the number of each image's prompt [B]."""
        return np.arange(len(self.rows)) // self.recipe.eval.samples

    def asked(self, judge: Judge) -> np.ndarray:
        """Tell which images a judge is asked about [B]."""
        return np.array([judge.judges(prompt) for prompt in self.rows.prompts])

    def judge(self, policy: Policy) -> dict[str, Found]:
        """Return what each judge says, by label."""
        parts = [[judge.examine(samples) for judge in self.judges] for samples in self._drawn(policy)]
        return {judge.label: _joined(found) for judge, found in zip(self.judges, zip(*parts, strict=True), strict=True)}

    def gaps(self) -> list[str]:
        """Say which monitors failed."""
        return [f"{judge.source} left a gap: {failure}" for judge in self.judges for failure in judge.failures]

    def _drawn(self, policy: Policy) -> Iterator[Samples]:
        for part in self.rows.split(self.recipe.batch.micro):
            with policy.evaluating(), torch.no_grad():
                drawn = Samples(part.prompts, policy.decode(sample(policy, self.recipe.eval.sampler, part)))
            yield drawn


def _joined(parts: Sequence[Scores]) -> Found:
    """Join all parts; those without evidence must not shift the evidence of the others."""
    evidence = [_plain(table) for part in parts for table in (part.evidence or [{}] * len(part.values))]
    return Found(np.concatenate([part.values.numpy() for part in parts]), evidence)


def _plain(evidence: Evidence) -> Evidence:
    """Keep evidence that JSON can hold, and the text of any other: scores that took hours are not lost for it."""
    try:
        json.dumps(evidence, allow_nan=False)
    except (TypeError, ValueError):
        return {"text": str(dict(evidence))}
    return evidence
