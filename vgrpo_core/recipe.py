"""What a run is made of, validated: the plugins in use and every value. Reading one from a file is `vgrpo_recipe`'s job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from .offers import Offer
from .plugin import Backbone, Objective, Prompts, Reward, Sampler
from .schema import Batch, Checkpoint, Combine, Gate, Optimizer, Run


@dataclass(frozen=True)
class RewardEntry:
    """A reward in use; what is combined is `scale * score + offset`. A monitor has weight 0."""

    label: str
    weight: float | tuple[tuple[int, float], ...]
    """Constant, or (iteration, weight) points."""
    scale: float
    offset: float
    plugin: Reward
    offer: Offer
    gate: Gate | None = None
    on: tuple[str, ...] = ()
    """The tags of the prompts that it judges; without any, all."""

    def weight_at(self, iteration: int) -> float:
        """Return the weight in an iteration: linear between points, constant beyond them."""
        from numpy import interp

        points = self.weight if isinstance(self.weight, tuple) else ((0, self.weight),)
        return float(interp(iteration, [at for at, _ in points], [weight for _, weight in points]))


@dataclass(frozen=True)
class PromptSet:
    """A source of prompts in use, its share of each iteration relative to the others, and the tag that its prompts get."""

    plugin: Prompts
    share: float = 1.0
    tag: str | None = None


@dataclass(frozen=True)
class Eval:
    """How to evaluate: prompts and sampler are those of training unless the recipe names others; `rewards` are monitors."""

    every: int
    seed: int
    samples: int
    prompts: tuple[PromptSet, ...]
    sampler: Sampler
    rewards: tuple[RewardEntry, ...]


@dataclass(frozen=True)
class Recipe:
    """A valid recipe. `offers` are the plugins in use, `table` is everything as resolved, defaults included.

    `made` says with what it was read: command line, versions, plugins.
    """

    path: Path
    run: Run
    backbone: Backbone
    sampler: Sampler
    prompts: tuple[PromptSet, ...]
    batch: Batch
    objective: Objective
    optimizer: Optimizer
    rewards: tuple[RewardEntry, ...]
    combine: Combine
    checkpoint: Checkpoint
    eval: Eval
    offers: tuple[Offer, ...]
    table: Mapping[str, Any]
    made: Mapping[str, Any]

    def to_toml(self) -> str:
        """Write the resolved recipe; it loads to the same recipe from any folder."""
        return tomli_w.dumps(self.table)


def moments(every: int, end: int) -> set[int]:
    """Return the iterations in which something is due: the multiples of `every`, none where it is 0, and always the last."""
    return {end, *(range(every, end, every) if every else ())}
