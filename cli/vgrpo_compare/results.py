"""What came of a comparison, from the runs on disk that are over: compare.json, compare.md and the picture."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from vgrpo_cli.shipped import called
from vgrpo_core.recipe import RewardEntry

from . import levels, plot, table
from .asked import Comparison
from .entries import Entry
from .jobs import Done, Job, done, final_weight
from .levels import Mean, Spread

FORMAT = 1
AXES: tuple[levels.Axis, ...] = ("cost", "seconds")


@dataclass(frozen=True)
class Tried:
    """An entry's sweep: the scores of the values, None while one is not over or where it broke its model."""

    scores: dict[str, float | None]
    over: bool
    """Whether all of its runs are."""

    @property
    def best(self) -> str | None:
        """Return the value with the highest score."""
        known = {value: score for value, score in self.scores.items() if score is not None}
        return max(known, key=lambda value: known[value]) if self.over and known else None

    @property
    def edge(self) -> bool:
        """Tell whether the best value is the smallest or the largest one: then a better one may lie outside."""
        try:
            numbers = [float(value) for value in self.scores]
            return self.best is not None and float(self.best) in (min(numbers), max(numbers))
        except ValueError:  # words have no order
            return False


def over(comparison: Comparison, job: Job) -> Done | None:
    """Return what came of a run if it is over."""
    recipe = job.recipe(comparison.common)
    return done(job, recipe, comparison.common) if recipe else None


def tried(comparison: Comparison, entry: Entry) -> Tried:
    """Read an entry's sweep."""
    found = {job.value or "": over(comparison, job) for job in comparison.swept(entry)}
    scores = {value: levels.late(run.curve) if run and not run.broken else None for value, run in found.items()}
    return Tried(scores, all(found.values()))


def ran(comparison: Comparison, entry: Entry) -> list[Done]:
    """Read an entry's runs that are over."""
    chosen = tried(comparison, entry).best if comparison.sweep else None
    jobs = comparison.seeded(entry, chosen) if chosen or not comparison.sweep else []
    return [run for job in jobs if (run := over(comparison, job))]


def collect(comparison: Comparison) -> dict[str, Any]:
    """Return everything that compare.json holds."""
    runs = {entry.label: ran(comparison, entry) for entry in comparison.entries}
    curves = [run.curve for each in runs.values() for run in each]
    marks = levels.default_levels(curves) if comparison.levels is None else comparison.levels
    first = runs[comparison.entries[0].label]
    budget, base = comparison.budget, comparison.common.base
    return {
        "format": FORMAT,
        "versions": {name: metadata.version(name) for name in ("vgrpo", "torch", "diffusers", "transformers")},
        "recipe": called(comparison.common.path),
        "name": base.run.name,
        "score": {entry.label: _weight(entry) for entry in base.rewards},
        "budget": asdict(budget),
        "seeds": list(comparison.seeds),
        "levels": list(marks),
        "complete": all(_complete(comparison, entry, runs[entry.label]) for entry in comparison.entries),
        "entries": [_entry(comparison, entry, runs[entry.label], first, marks) for entry in comparison.entries],
    }


def _complete(comparison: Comparison, entry: Entry, runs: Sequence[Done]) -> bool:
    sweep = tried(comparison, entry)
    return len(runs) == len(comparison.seeds) or bool(comparison.sweep and sweep.over and sweep.best is None)


def _weight(entry: RewardEntry) -> dict[str, float]:
    return {"weight": final_weight(entry), "scale": entry.scale, "offset": entry.offset}


def _entry(
    comparison: Comparison, entry: Entry, runs: Sequence[Done], first: Sequence[Done], marks: Sequence[float]
) -> dict[str, Any]:
    means = {
        "final": Mean.of(run.final for run in runs),
        "best": Mean.of(levels.best(run.curve) for run in runs),
        "cost": Mean.of(run.curve[-1].cost for run in runs),
        "seconds": Mean.of(run.curve[-1].seconds for run in runs),
    }
    return {
        "label": entry.label,
        "objective": entry.objective,
        "overrides": [item.text for item in entry.overrides],
        "sweep": _sweep(comparison, entry),
        **{name: mean and asdict(mean) for name, mean in means.items()},
        "reached": [_reached(runs, first, level) for level in marks],
        "runs": [asdict(run) | {"folder": str(Path(run.folder).relative_to(comparison.out))} for run in runs],
    }


def _sweep(comparison: Comparison, entry: Entry) -> dict[str, Any] | None:
    sweep = comparison.sweep
    if not sweep:
        return None
    found = tried(comparison, entry)
    about = {"key": sweep.full, "budget": sweep.budget.amount, "seed": sweep.seed, "overrides": [item.text for item in sweep.sets]}
    return {**about, "scores": found.scores, "best": found.best, "edge": found.edge}


def _reached(runs: Sequence[Done], first: Sequence[Done], level: float) -> dict[str, Any]:
    found: dict[str, Any] = {"level": level}
    for axis in AXES:
        here, there = ({run.seed: levels.reached(run.curve, level, axis) for run in each} for each in (runs, first))
        spreads = {axis: Spread.of(here.values()), f"{axis}_speed": Spread.of(levels.speeds(there, here))}
        found |= {name: spread and asdict(spread) for name, spread in spreads.items()}
    return found


# Files


@contextmanager
def alone(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Hold a folder against other processes; yield whether it is held, which without `wait` it may not be."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def write(comparison: Comparison, *, pictures: bool) -> dict[str, Any]:
    """Write what is known by now, one process at a time, each file whole or not at all; return what compare.json holds."""
    with alone(comparison.out, wait=True):
        found = collect(comparison)
        _replace(comparison.out / "compare.json", json.dumps(found, indent=1, allow_nan=False).encode() + b"\n")
        _replace(comparison.out / "compare.md", table.page(found).encode())
        for name, picture in plot.draw(found).items() if pictures else ():
            _replace(comparison.out / name, picture)
    return found


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(path)
