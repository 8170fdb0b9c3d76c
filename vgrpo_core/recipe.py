"""What a run is made of, validated: the plugins in use and every value. Reading one from a file is `vgrpo_recipe`'s job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from .plugin import Backbone, Objective, Prompts, Reward, Sampler
from .registry import Offer
from .schema import Batch, Checkpoint, Combine, Optimizer, Run


@dataclass(frozen=True)
class RewardEntry:
    """A reward in use; what is combined is `scale * score + offset`. A monitor has weight 0."""

    label: str
    weight: float
    scale: float
    offset: float
    plugin: Reward
    offer: Offer


@dataclass(frozen=True)
class Eval:
    """How to evaluate: prompts and sampler are those of training unless the recipe names others; `rewards` are monitors."""

    every: int
    seed: int
    samples: int
    prompts: Prompts
    sampler: Sampler
    rewards: tuple[RewardEntry, ...]


@dataclass(frozen=True)
class Recipe:
    """A valid recipe. `offers` are the plugins in use, `table` is everything as resolved, defaults included."""

    path: Path
    run: Run
    backbone: Backbone
    sampler: Sampler
    prompts: Prompts
    batch: Batch
    objective: Objective
    optimizer: Optimizer
    rewards: tuple[RewardEntry, ...]
    combine: Combine
    checkpoint: Checkpoint
    eval: Eval
    offers: tuple[Offer, ...]
    table: Mapping[str, Any]

    def to_toml(self) -> str:
        """Write the resolved recipe; it loads to the same recipe from any folder."""
        return tomli_w.dumps(self.table)
