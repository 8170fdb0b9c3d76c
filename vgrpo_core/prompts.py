"""The prompts of a run: one set or several, each with its share of every iteration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from .errors import PluginError, VgrpoError, reason
from .plugin import Prompt
from .recipe import PromptSet


class Pool:
    """Draw prompts from sets in turn, so that at any time each has had its share to within one prompt."""

    def __init__(self, sets: Sequence[PromptSet]) -> None:
        self.sets = [load_prompts([each]) for each in sets]
        self.shares = [each.share / sum(other.share for other in sets) for each in sets]
        self.drawn = [0] * len(sets)
        self.turns: list[tuple[int, int]] = []

    def draw(self, run: int, iteration: int, count: int) -> list[Prompt]:
        """Return the `count` prompts of an iteration (from 1): a pure function of its arguments."""
        while len(self.turns) < iteration * count:
            due = [share * (len(self.turns) + 1) - drawn for share, drawn in zip(self.shares, self.drawn, strict=True)]
            chosen = due.index(max(due))
            self.turns.append((chosen, self.drawn[chosen]))
            self.drawn[chosen] += 1
        return [self._prompt(run, *turn) for turn in self.turns[(iteration - 1) * count : iteration * count]]

    def _prompt(self, run: int, chosen: int, place: int) -> Prompt:
        from .keys import prompt_index  # needs torch, which a plan does not

        prompts = self.sets[chosen]
        return prompts[prompt_index(run, place, len(prompts), *([chosen] if chosen else []))]


def load_prompts(sets: Iterable[PromptSet]) -> tuple[Prompt, ...]:
    """Load prompts and mark them with their tags; a source that fails or is empty is a PluginError."""
    return tuple(prompt for each in sets for prompt in _load(each))


def _load(source: PromptSet) -> Sequence[Prompt]:
    name = source.plugin.name
    try:
        loaded = [replace(prompt, tags=_tags(prompt, source.tag)) for prompt in source.plugin.load()]
    except VgrpoError:
        raise
    except Exception as error:
        raise PluginError(f'prompts "{name}" could not be loaded', reason(error)) from error
    if not loaded:
        raise PluginError(f'prompts "{name}" has none', fix="Look at its options in the recipe.")
    return loaded


def _tags(prompt: Prompt, tag: str | None) -> frozenset[str]:
    own = prompt.metadata.get("tags", prompt.metadata.get("tag", ()))
    return frozenset([own] if isinstance(own, str) else own) | ({tag} if tag else set())
