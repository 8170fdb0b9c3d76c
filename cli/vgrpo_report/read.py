"""What a run folder tells: its recipe, its lines of metrics, and what follows from them."""

from __future__ import annotations

import json
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from vgrpo_cli.alerts import Alerts
from vgrpo_core import VgrpoError
from vgrpo_core.events import Metrics
from vgrpo_recipe.tables import dump, flat


@dataclass(frozen=True)
class Reward:
    """A reward that was trained on."""

    label: str
    weight: str
    """As people read it; a weight that moves is its points."""
    factor: float
    """Weight at the start times scale: what its score counts, and by its sign which way is better."""

    @classmethod
    def of(cls, label: str, table: Mapping[str, Any]) -> Self:
        """Read one from the table of a resolved recipe."""
        from numpy import interp

        points = table["weight"] if isinstance(table["weight"], list) else [[0, table["weight"]]]
        at, weights = zip(*points, strict=True)
        moves = ", ".join(f"{weight:g} at {iteration}" for iteration, weight in points)
        return cls(label, moves if len(points) > 1 else f"{weights[0]:g}", float(interp(0, at, weights)) * table["scale"])


@dataclass(frozen=True)
class Run:
    """A run on disk that was evaluated once at least."""

    path: Path
    recipe: str
    manifest: Mapping[str, Any]
    lines: Sequence[Metrics]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a folder; one that holds no run, or one of which nothing is known yet, is a VgrpoError."""
        from vgrpo_core.folder import Folder

        try:
            recipe = (path / "recipe.toml").read_text(encoding="utf-8")
            manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
            lines = Folder(path).lines()
        except OSError as error:
            what = f"{path}: not the folder of a run: {error.strerror}: {Path(error.filename or path).name}"
            raise VgrpoError(f"{what}\n  Name the folder that `vgrpo run` wrote, such as runs/words.") from error
        except ValueError as error:
            raise VgrpoError(f"{path}: a file of the run is damaged: {error}") from error
        if not lines:
            raise VgrpoError(f"{path}: nothing to report yet: the first evaluation is not done\n  Try again when it is.")
        return cls(path, recipe, manifest, lines)

    @cached_property
    def table(self) -> Mapping[str, Any]:
        """The recipe as resolved."""
        return tomllib.loads(self.recipe)

    @property
    def name(self) -> str:
        """What the recipe calls it."""
        return str(self.table["run"].get("name") or self.path.resolve().name)

    @cached_property
    def evaluated(self) -> list[tuple[int, dict[str, float | None]]]:
        """The iterations that were evaluated, with their held-out means by label."""
        from vgrpo_core.folder import evaluated

        return [(int(line["iteration"] or 0), scores) for line in self.lines if (scores := evaluated(line))]

    @cached_property
    def rewards(self) -> list[Reward]:
        """What was trained on, in the order of the recipe, which is that of the metrics too."""
        return [Reward.of(label, table) for label, table in zip(self.labels, self.table["reward"], strict=False)]

    @property
    def labels(self) -> list[str]:
        """All that was evaluated: trained rewards first, then what was watched only."""
        return list(self.evaluated[0][1])

    @property
    def done(self) -> int:
        """How many iterations are in the metrics."""
        return int(self.lines[-1]["iteration"] or 0)

    @property
    def wanted(self) -> int:
        """How many iterations the recipe asks for."""
        return int(self.table["run"]["iterations"])

    def best(self, label: str) -> tuple[int, float] | None:
        """Return when a label's held-out mean was best and what it was: lowest where its weight is negative."""
        known = [(at, value) for at, scores in self.evaluated if (value := scores.get(label)) is not None]
        lowers = any(reward.label == label and reward.factor < 0 for reward in self.rewards)
        return (min if lowers else max)(known, key=lambda pair: pair[1], default=None)

    def alerts(self) -> Iterator[tuple[int, str]]:
        """Yield what the run was warned of, with the iteration: found again from the metrics."""
        alerts = Alerts({reward.label: reward.factor for reward in self.rewards})
        evaluated, start = dict(self.evaluated), self.evaluated[0][1]
        for line in self.lines:
            at = int(line["iteration"] or 0)
            found = alerts.evaluated(evaluated[at], start) if at in evaluated else []
            yield from ((at, alert) for alert in found + (alerts.iterated(line) if at else []))

    def spent(self, key: str) -> float | None:
        """Return the median of what an iteration adds to a running total; None where no iteration is known."""
        steps = [
            (now - before) / (after - at)
            for (at, before), (after, now) in zip(self._totals(key), self._totals(key)[1:], strict=False)
            if after > at
        ]
        return statistics.median(steps) if steps else None

    def _totals(self, key: str) -> list[tuple[int, float]]:
        return [(int(line["iteration"] or 0), value) for line in self.lines if (value := line.get(key)) is not None]


def named(runs: Sequence[Run]) -> list[str]:
    """Name runs apart: one by its recipe, several by their folders, with as much of the path as it takes."""
    if len(runs) == 1:
        return [runs[0].name]
    parts = [run.path.resolve().parts for run in runs]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def differences(runs: Sequence[Run]) -> dict[str, list[str | None]]:
    """Return the keys in which the recipes differ, as `--set` names them, with each run's value; None where it has none."""
    tables = [{key: dump(value) for key, value in flat(run.table)} for run in runs]
    keys = dict.fromkeys(key for table in tables for key in table if key != "run.name")
    rows = {key: [table.get(key) for table in tables] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}
