"""One training run of a comparison: its recipe, its folder, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vgrpo_cli.folders import shown
from vgrpo_core import VgrpoError
from vgrpo_core.events import Metrics
from vgrpo_core.recipe import Recipe, RewardEntry
from vgrpo_recipe import load
from vgrpo_recipe.plan import Plan
from vgrpo_recipe.registry import Registry
from vgrpo_recipe.tables import flat

from .budget import Budget, Count, cost, per_iteration
from .entries import Common, Entry, Override
from .levels import Point

EVALUATIONS = 10  # of held-out prompts in a run, besides that of the start
TIMED = 3  # iterations that are timed; the first of them, which also warms up, does not count
ENDED = "ended.json"


@dataclass(frozen=True)
class Sweep:
    """The values of one key that every entry tries first."""

    key: str
    """As typed."""
    full: str
    """As a recipe has it."""
    values: tuple[str, ...]
    budget: Budget
    seed: int
    sets: tuple[Override, ...]

    def override(self, value: str) -> tuple[Override]:
        """Set one of the values."""
        return (Override(f"{self.full}={value}", f"--sweep {self.key}={value}"),)


@dataclass(frozen=True)
class Job:
    """A run to do in `folder`, with all that is set but seed and length."""

    entry: Entry
    value: str | None
    """What the sweep tries or has chosen."""
    seed: int
    budget: Budget
    overrides: tuple[Override, ...]
    folder: Path
    sweep: bool = False

    def plan(self, common: Common, iterations: int) -> Plan:
        """Read the recipe of the run, for a number of iterations; one that is not valid is a VgrpoError."""
        every = max(1, round(iterations / EVALUATIONS))
        length = [f"run.iterations={iterations}", f"run.seed={self.seed}", f"eval.every={every}"]
        return common.plan((*(Override(each, "the length of the run") for each in length), *self.overrides))

    def cost(self, common: Common) -> float:
        """Return what one of its iterations costs by plan, in network evaluations."""
        return per_iteration(self.plan(common, 1), self.budget.count)

    def recipe(self, common: Common) -> Recipe | None:
        """Return the recipe with the iterations that the budget pays for; None while an iteration has not been timed yet."""
        each = self.cost(common)
        if self.budget.unit == "seconds":
            timed = seconds(self.timing(common).folder)
            if timed is None:
                return None
            each = timed
        return self.plan(common, self.budget.iterations(each)).recipe

    def timing(self, common: Common) -> Job:
        """Return the short run that times an iteration of this cost."""
        folder = self.folder.parents[2 if self.sweep else 0] / "timing" / f"{self.cost(common):.0f}"
        return replace(self, budget=Budget(TIMED * self.cost(common), "evaluations", self.budget.count), folder=folder)

    def check(self, common: Common) -> None:
        """Refuse a recipe that is not valid, and a folder with a run of another recipe; a VgrpoError names what differs."""
        recipe = self.recipe(common)
        if recipe:
            check_same(recipe, self.folder, common.registry)


def check_same(given: Recipe, folder: Path, registry: Registry) -> None:
    """Refuse to go on with another recipe than the one in `folder`, in anything but its checkpoints."""
    kept = folder / "recipe.toml"
    if not kept.is_file() or kept.read_text(encoding="utf-8") == given.to_toml():
        return
    here, there = dict(flat(given.table)), dict(flat(load(kept, registry=registry, track=False).table))
    keys = [key for key in {**there, **here} if here.get(key) != there.get(key) and not key.startswith("checkpoint.")]
    if keys:
        lines = [f"{key} was {shown(there.get(key))}, now {shown(here.get(key))}" for key in keys]
        raise VgrpoError(
            "\n  ".join([f"{folder} holds a run of another recipe", *lines, "Name another --out, or remove that folder."])
        )


# What is on disk


@dataclass(frozen=True)
class Done:
    """A run that is over: the curve of its evaluations, why it ended early if it did, and whether its model is broken."""

    seed: int
    folder: str
    iterations: int
    curve: tuple[Point, ...]
    ended: str | None = None
    broken: bool = False

    @property
    def final(self) -> float | None:
        """Return the last score; a run that broke its model has none."""
        return self.curve[-1].score if self.curve and not self.broken else None


def done(job: Job, recipe: Recipe, common: Common) -> Done | None:
    """Return what came of a run, judged by the common recipe's rewards; None while it is not over."""
    ended = _json(job.folder / ENDED)
    if not ended and _json(job.folder / "summary.json").get("iterations") != recipe.run.iterations:
        return None
    check_same(recipe, job.folder, common.registry)
    curve = tuple(points(lines(job.folder), common.base.rewards, job.budget.count))
    return Done(job.seed, str(job.folder), recipe.run.iterations, curve, ended.get("why"), ended.get("broken", False))


def points(metrics: Sequence[Metrics], yardstick: Sequence[RewardEntry], count: Count) -> Iterator[Point]:
    """Yield the evaluations in the lines of a metrics.jsonl."""
    from vgrpo_core.folder import evaluated

    for line in metrics:
        if means := evaluated(line):
            spent, score = cost(line, count), weighted(means, yardstick)
            numbers = int(line["iteration"] or 0), int(line["evaluations"] or 0), int(line["backwards"] or 0)
            yield Point(*numbers, spent, line["seconds"] or 0.0, means, score)


def weighted(means: Mapping[str, float | None], yardstick: Sequence[RewardEntry]) -> float | None:
    """Return the weighted sum of scaled held-out means; weights that change count as they end."""
    total = 0.0
    for entry in yardstick:
        mean = means.get(entry.label)
        if mean is None:
            return None
        total += final_weight(entry) * (entry.scale * mean + entry.offset)
    return total


def final_weight(entry: RewardEntry) -> float:
    """Return a reward's weight, or the last of its points."""
    return entry.weight[-1][1] if isinstance(entry.weight, tuple) else entry.weight


def seconds(folder: Path) -> float | None:
    """Return how long an iteration took in a run that was made to time it; None before it has ended."""
    times = [line["seconds"] or 0.0 for line in lines(folder)] if (folder / "summary.json").is_file() else []
    return (times[-1] - times[1]) / (len(times) - 2) or None if times[2:] else None


def lines(folder: Path) -> list[Metrics]:
    """Read the metrics of a run."""
    from vgrpo_core.folder import Folder

    return Folder(folder).lines()


def _json(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found
    except FileNotFoundError:
        return {}
