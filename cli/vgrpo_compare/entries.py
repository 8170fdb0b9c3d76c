"""The entries of a comparison: one recipe each, made of the common one, and read by the reader that runs use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vgrpo_core import RecipeError, VgrpoError
from vgrpo_core.errors import nearest
from vgrpo_core.recipe import Recipe
from vgrpo_recipe import load
from vgrpo_recipe.choice import choose
from vgrpo_recipe.plan import Plan
from vgrpo_recipe.registry import Registry
from vgrpo_recipe.tables import dump, flat

LABEL = r"[A-Za-z_][\w+-]*"
RESERVED = {
    "objective": "--objectives names the objectives",
    "objective.use": "--objectives names the objectives",
    "run.seed": "--seeds names the seeds",
    "run.iterations": "--budget or --seconds says how long runs are",
}


class Override(NamedTuple):
    """A value set in a recipe, with the words that asked for it."""

    text: str
    """`key.path=value`."""
    typed: str
    """How messages name it, such as `--set few:objective.pairs=2`."""


@dataclass(frozen=True)
class Entry:
    """One of what is compared."""

    label: str
    objective: str
    """As a recipe's `use` names it."""
    overrides: tuple[Override, ...] = ()


@dataclass(frozen=True)
class Common:
    """What all entries share: the recipe's file, the recipe itself with what is set for all, and the plugins."""

    path: Path
    base: Recipe
    shared: tuple[Override, ...]
    registry: Registry
    plans: dict[tuple[Override, ...], Plan] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, shared: Sequence[Override], registry: Registry) -> Common:
        """Read the recipe with what is set for all but options of objectives, which not every objective has."""
        plain = [item for item in shared if not item.text.startswith("objective.")]
        return cls(path, read(path, plain, registry), tuple(shared), registry)

    def entry(self, entry: Entry, own: Sequence[Override]) -> Entry:
        """Complete an entry's overrides; a RecipeError if its recipe is not valid.

        The recipe's own objective keeps its table, another one starts from its defaults. All are judged by the recipe's sampler of
        evaluation. An objective that learns from noisy steps brings the sampler that it names as its `companion`, where the
        recipe's has too few.
        """
        swap = [Override(f"objective={{use={dump(entry.objective)}}}", f"--objectives {entry.label}={entry.objective}")]
        same = self.base.table["objective"]["use"] in (entry.objective, self._absolute(entry.objective))
        before = [*([] if same else swap), *self.shared, *self._judge()]
        companion = self._companion(entry)
        try:
            overrides = [*before, *own]
            read(self.path, overrides, self.registry)
        except RecipeError:
            if not companion:
                raise
            overrides = [*before, *companion, *own]
            read(self.path, overrides, self.registry)
        return Entry(entry.label, entry.objective, tuple(overrides))

    def plan(self, overrides: tuple[Override, ...]) -> Plan:
        """Return the plan of the recipe with overrides, read once."""
        if overrides not in self.plans:
            self.plans[overrides] = Plan.of(read(self.path, overrides, self.registry))
        return self.plans[overrides]

    def _absolute(self, use: str) -> str:
        return str(self.path.parent.resolve() / use)

    def _judge(self) -> list[Override]:
        table = self.base.table["eval"].get("sampler", self.base.table["sampler"])
        return [Override(f"eval.sampler.{key}={dump(value)}", "the sampler of evaluation") for key, value in flat(table)]

    def _companion(self, entry: Entry) -> list[Override]:
        try:
            plugin = choose(self.registry, "objective", entry.objective, self.path.parent).plugin
        except VgrpoError:  # which the reader tells
            return []
        name = getattr(plugin, "companion", None)
        steps = self.base.sampler.steps
        return [Override(f"sampler={{use={dump(name)}, steps={steps}}}", f"the sampler of {entry.label}")] if name else []


def read(path: Path, overrides: Sequence[Override], registry: Registry) -> Recipe:
    """Load a recipe; mistakes in overrides are told in the words that asked for them."""
    try:
        return load(path, [item.text for item in overrides], registry, track=False)
    except RecipeError as error:
        raise RecipeError([_as_typed(mistake, overrides) for mistake in error.mistakes]) from error


def _as_typed(mistake: str, overrides: Sequence[Override]) -> str:
    for item in sorted(overrides, key=lambda item: -len(item.text)):
        if mistake.startswith(f"--set {item.text}: "):
            return item.typed + mistake.removeprefix(f"--set {item.text}")
    return mistake


# What was typed


class Typed(NamedTuple):
    """Entries and what is set for all and for each, with the mistakes in them."""

    entries: tuple[Entry, ...]
    shared: tuple[Override, ...]
    own: dict[str, list[Override]]
    mistakes: list[str]


def typed(objectives: str, sets: Sequence[str]) -> Typed:
    """Read `OBJECTIVE` or `LABEL=OBJECTIVE`, with commas between, and `KEY=VALUE` or `LABEL:KEY=VALUE`."""
    mistakes = list[str]()
    entries = tuple(_entries(objectives, mistakes))
    shared, own = list[Override](), {entry.label: list[Override]() for entry in entries}
    for item in sets:
        label, colon, rest = item.partition(":") if ":" in item.partition("=")[0] else ("", "", item)
        key = rest.partition("=")[0].strip()
        if key in RESERVED:
            mistakes.append(f"--set {item}: {RESERVED[key]}")
        elif colon and re.match(r"eval\b", key):
            mistakes.append(f"--set {item}: all entries are judged alike; write it without {label}:")
        elif not colon:
            shared.append(Override(rest, f"--set {item}"))
        elif label in own:
            own[label].append(Override(rest, f"--set {item}"))
        else:
            mistakes.append(f"--set {item}: {unknown(label, list(own))}")
    return Typed(entries, tuple(shared), own, mistakes)


def unknown(label: str, known: Sequence[str]) -> str:
    """Say that no entry has a label."""
    hint = nearest(label, known) or f"; there are: {', '.join(known)}"
    return f'no entry "{label}"{hint}'


def _entries(objectives: str, mistakes: list[str]) -> Iterator[Entry]:
    seen = set[str]()
    for word in map(str.strip, objectives.split(",")):
        label, equals, use = word.partition("=")
        label, use = (label, use) if equals else (re.split("[/:]", word)[-1], word)
        if not use or not re.fullmatch(LABEL, label):
            mistakes.append(
                f'--objectives: "{word}" is no entry; write OBJECTIVE or LABEL=OBJECTIVE, the label in letters, digits, - or _'
            )
        elif label.lower() in seen:  # some file systems take no notice of case
            mistakes.append(f'--objectives: the label "{label}" is taken; write "another=" before one of them')
        else:
            seen.add(label.lower())
            yield Entry(label, use)
