"""The run folder: recipe.toml as resolved, manifest.json, metrics.jsonl, summary.json, checkpoints/, model/."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import checkpoint
from .errors import RunError
from .events import Metrics

if TYPE_CHECKING:
    from .recipe import Recipe

class Folder:
    """One run on disk. Whatever is read back was written whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"

    def create(self, recipe: Recipe, manifest: Mapping[str, Any]) -> None:
        """Make the folder and write what is known at the start; one that holds a checkpoint is a RunError."""
        if checkpoint.complete(self.checkpoints):
            raise RunError(f"{self.path}: holds a run already; go on with --resume, or name another folder")
        self.path.mkdir(parents=True, exist_ok=True)
        self.metrics.unlink(missing_ok=True)
        self.keep(recipe)
        checkpoint.write_json(self.path / "manifest.json", manifest)

    def keep(self, recipe: Recipe) -> None:
        """Write the recipe in use; a resumed run may have other overrides."""
        checkpoint.write_text(self.path / "recipe.toml", recipe.to_toml())

    def append(self, metrics: Metrics) -> None:
        """Add one line to metrics.jsonl."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(metrics, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[Metrics]:
        """Read metrics.jsonl; a last line that a crash cut short is left out."""
        if not self.metrics.is_file():
            return []
        return [json.loads(line) for line in self.metrics.read_text(encoding="utf-8").split("\n")[:-1]]

    def rewind(self, iteration: int) -> None:
        """Drop the lines after `iteration`: the run will write them again."""
        kept = [json.dumps(line) + "\n" for line in self.lines() if (line["iteration"] or 0) <= iteration]
        checkpoint.write_text(self.metrics, "".join(kept))

    def latest(self) -> Path:
        """Return the newest checkpoint; none is a RunError."""
        if not (found := checkpoint.complete(self.checkpoints)):
            raise RunError(f"{self.path}: no checkpoint to resume from; start again without --resume")
        return found[-1]

    def summarise(self, weights: Mapping[str, float]) -> dict[str, Any]:
        """Write summary.json from metrics.jsonl and return it: held-out means at the start, at the end, and the best.

        The best of a label is its highest mean, or its lowest where its weight is negative.
        """
        lines = self.lines()
        held_out = [evaluated(line) for line in lines if evaluated(line)]
        tops = {label: best([scores.get(label) for scores in held_out], weights.get(label, 1.0)) for label in held_out[0]}
        last = {key: lines[-1][key] for key in ("seconds", "evaluations")}
        summary = {"start": held_out[0], "final": held_out[-1], "best": tops, "iterations": lines[-1]["iteration"], **last}
        checkpoint.write_json(self.path / "summary.json", summary)
        return summary


def evaluated(line: Metrics) -> dict[str, float | None]:
    """Return the held-out means in a line of metrics.jsonl, by label."""
    means = {key: value for key, value in line.items() if key.startswith("eval/") and key.endswith("/mean")}
    return {key.removeprefix("eval/").removesuffix("/mean"): value for key, value in means.items()}


def best(values: Sequence[float | None], weight: float) -> float | None:
    """Return the highest of the values that are known, or the lowest where the weight is negative."""
    known = [value for value in values if value is not None]
    return (min if weight < 0 else max)(known, default=None)
