"""What training costs, and how many iterations a budget pays for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vgrpo_recipe.plan import Plan

Count = Literal["all", "forwards"]


@dataclass(frozen=True)
class Budget:
    """How much each run may spend in training: network evaluations, counted as `count` says, or seconds."""

    amount: float
    unit: Literal["evaluations", "seconds"]
    count: Count

    def iterations(self, each: float) -> int:
        """Return how many iterations that cost `each` it pays for; one at least."""
        return max(1, math.floor(self.amount / each + 1e-9))


def spent(evaluations: float, backwards: float, count: Count) -> float:
    """Return the cost of rows sent forward, `backwards` of them with a gradient: a backward pass counts as two evaluations."""
    return evaluations + (2 * backwards if count == "all" else 0)


def per_iteration(plan: Plan, count: Count) -> float:
    """Return what an iteration costs by plan: less is spent only where samples without an advantage are left out."""
    return spent(plan.evaluations, plan.images * _gradients(plan), count)


def _gradients(plan: Plan) -> float:
    """Count the rows with a gradient per image; an objective that counts them itself has the attribute `backwards`."""
    objective = plan.recipe.objective
    steps = 1 if getattr(objective, "split", False) else objective.steps
    learnt = getattr(objective, "top", 1.0) * objective.rows_per_sample * steps
    return float(getattr(objective, "backwards", learnt))


def cost(line: Mapping[str, float | None], count: Count) -> float:
    """Return the cost up to a line of metrics.jsonl."""
    return spent(line["evaluations"] or 0, line["backwards"] or 0, count)
