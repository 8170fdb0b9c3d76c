"""What was typed, and the comparison that it asks for: every mistake is told at once, and before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast, get_args

from vgrpo_cli import folders
from vgrpo_cli.shipped import find
from vgrpo_core import RecipeError, VgrpoError
from vgrpo_recipe.registry import Registry

from .budget import Budget, Count
from .entries import RESERVED, Common, Entry, Override, Typed, typed, unknown
from .jobs import Job, Sweep

T = TypeVar("T", int, float)
ALIASES = {"lr": "optimizer.lr"}
OUT = Path("compare")


@dataclass(frozen=True)
class Asked:
    """What was typed."""

    recipe: str
    objectives: str
    seeds: str = "0,1,2"
    budget: float | None = None
    seconds: float | None = None
    count: str = "all"
    sweep: str | None = None
    sweep_budget: float | None = None
    sweep_seed: int | None = None
    sweep_set: Sequence[str] = ()
    sets: Sequence[str] = ()
    levels: str | None = None
    only: Sequence[str] = ()
    out: Path | None = None


@dataclass(frozen=True)
class Comparison:
    """A valid comparison."""

    common: Common
    entries: tuple[Entry, ...]
    only: tuple[Entry, ...]
    """Those to run here; the others may be run elsewhere."""
    seeds: tuple[int, ...]
    budget: Budget
    sweep: Sweep | None
    levels: tuple[float, ...] | None
    out: Path

    def swept(self, entry: Entry) -> list[Job]:
        """List the runs of an entry's sweep."""
        return [self._job(entry, value) for value in self.sweep.values] if self.sweep else []

    def seeded(self, entry: Entry, value: str | None) -> list[Job]:
        """List an entry's runs with the value that its sweep chose."""
        chosen = self.sweep.override(value) if self.sweep and value is not None else ()
        return [
            Job(entry, value, seed, self.budget, (*entry.overrides, *chosen), self.out / entry.label / f"seed-{seed}")
            for seed in self.seeds
        ]

    def _job(self, entry: Entry, value: str) -> Job:
        assert self.sweep
        sweep, name = self.sweep, f"{self.sweep.key}={value}".replace("/", "_")
        overrides = (*entry.overrides, *sweep.sets, *sweep.override(value))
        folder = self.out / entry.label / "sweep" / name / f"seed-{sweep.seed}"
        return Job(entry, value, sweep.seed, sweep.budget, overrides, folder, sweep=True)


def read(asked: Asked) -> Comparison:
    """Return the comparison that was asked for; a RecipeError holds everything that is wrong with it."""
    path, registry = find(asked.recipe), Registry.discover()
    words = typed(asked.objectives, asked.sets)
    mistakes = list(words.mistakes)
    seeds = _numbers("--seeds", asked.seeds, int, mistakes)
    levels = None if asked.levels is None else tuple(sorted(_numbers("--levels", asked.levels, float, mistakes)))
    budget = _budget(asked, mistakes)
    sweep = _sweep(asked, seeds, budget, mistakes)
    only = _only(asked.only, words.entries, mistakes)
    common, entries = _recipes(path, words, registry, mistakes)
    if common is None or mistakes:
        raise RecipeError(mistakes)
    out = folders.check_place(asked.out or OUT / common.base.run.name, "--out")
    chosen = tuple(entry for entry in entries if entry.label in only)
    comparison = Comparison(common, entries, chosen, seeds, budget, sweep, levels, out)
    _check(comparison)
    return comparison


def _recipes(path: Path, words: Typed, registry: Registry, mistakes: list[str]) -> tuple[Common | None, tuple[Entry, ...]]:
    try:
        common = Common.read(path, words.shared, registry)
    except VgrpoError as error:
        mistakes += _all(error)
        return None, ()
    found, wrong = list[Entry](), dict[str, list[str]]()
    for entry in words.entries:
        try:
            found.append(common.entry(entry, words.own[entry.label]))
        except VgrpoError as error:
            wrong[entry.label] = _all(error)
    mistakes += _together(wrong, len(words.entries))
    return common, tuple(found)


def _check(comparison: Comparison) -> None:
    """Read every run's recipe, and hold it against the folder that it would go on in."""
    wrong = dict[str, list[str]]()
    for entry in comparison.entries:
        unswept = [] if comparison.sweep else comparison.seeded(entry, None)
        for job in [*comparison.swept(entry), *unswept]:
            try:
                job.check(comparison.common)
            except VgrpoError as error:
                wrong.setdefault(entry.label, []).extend(_all(error))
    if wrong:
        raise RecipeError(_together(wrong, len(comparison.entries)))


def _all(error: VgrpoError) -> list[str]:
    return list(error.mistakes) if isinstance(error, RecipeError) else [str(error)]


def _together(wrong: dict[str, list[str]], entries: int) -> list[str]:
    """Tell once what is wrong with all entries, and the rest with the entry's label."""
    everywhere = set.intersection(*map(set, wrong.values())) if len(wrong) == entries > 1 else set[str]()
    lines = [each if each in everywhere else f"{label}: {each}" for label, mistakes in wrong.items() for each in mistakes]
    return list(dict.fromkeys(lines))


# Single options


def _numbers(option: str, text: str, kind: type[T], mistakes: list[str]) -> tuple[T, ...]:
    try:
        found = tuple(kind(word) for word in text.split(","))
        if not all(math.isfinite(value) and (kind is float or value >= 0) for value in found):
            raise ValueError
    except ValueError:
        what = "whole numbers from 0" if kind is int else "numbers"
        mistakes.append(f"{option} {text}: write {what} with commas between, such as {'0,1,2' if kind is int else '0.6,0.7'}")
        return ()
    if len(set(found)) < len(found):
        mistakes.append(f"{option} {text}: one is named twice")
    return found


def _budget(asked: Asked, mistakes: list[str]) -> Budget:
    given = {"--budget": asked.budget, "--seconds": asked.seconds, "--sweep-budget": asked.sweep_budget}
    mistakes += [
        f"{option} {value:g}: it has to be above 0" for option, value in given.items() if value is not None and not value > 0
    ]
    if (asked.budget is None) == (asked.seconds is None):
        mistakes.append("give one of the two: --budget, in network evaluations of a run, or --seconds")
    if asked.count not in get_args(Count):
        mistakes.append(f"--count {asked.count}: write {' or '.join(get_args(Count))}")
    count = cast(Count, asked.count)
    return Budget(asked.seconds, "seconds", count) if asked.seconds is not None else Budget(asked.budget or 1, "evaluations", count)


def _sweep(asked: Asked, seeds: Sequence[int], budget: Budget, mistakes: list[str]) -> Sweep | None:
    rest = {"--sweep-budget": asked.sweep_budget, "--sweep-seed": asked.sweep_seed, "--sweep-set": asked.sweep_set or None}
    if asked.sweep is None:
        mistakes += [f"{option} needs --sweep" for option, value in rest.items() if value is not None]
        return None
    key, _, raw = asked.sweep.partition("=")
    values, full = tuple(map(str.strip, raw.split(","))), ALIASES.get(key.strip(), key.strip())
    if not full or not all(values) or len(values) < 2 or len(set(values)) < len(values):
        mistakes.append(f"--sweep {asked.sweep}: write a key and two values or more, such as lr=1e-4,3e-4,1e-3")
    mistakes += [f"--sweep {asked.sweep}: {RESERVED[full]}"] if full in RESERVED else []
    amount = asked.sweep_budget or budget.amount / 2
    free = next(seed for seed in range(len(seeds) + 1) if seed not in seeds)
    seed = free if asked.sweep_seed is None else asked.sweep_seed
    sets = tuple(Override(item, f"--sweep-set {item}") for item in asked.sweep_set)
    return Sweep(key.strip(), full, values, Budget(amount, budget.unit, budget.count), seed, sets)


def _only(only: Iterable[str], entries: Sequence[Entry], mistakes: list[str]) -> list[str]:
    labels = [entry.label for entry in entries]
    wanted = [word.strip() for item in only for word in item.split(",")]
    mistakes += [f"--only {word}: {unknown(word, labels)}" for word in wanted if word not in labels]
    return wanted or labels
