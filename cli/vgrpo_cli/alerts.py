"""Signs that a reward is being gamed: what no reward is about falls clearly while a reward rises."""

from __future__ import annotations

from collections.abc import Mapping

from vgrpo_recipe.layout import WATCHED

FALL = 0.3  # of what it was at the start
HARMLESS = "dark_fraction"  # its fall is no sign; it is near 0 from the start for most models
DIVERSITY = "group/diversity"

Values = Mapping[str, float | None]


class Alerts:
    """Compare each evaluation and iteration with the first, and say once for each sign what has fallen."""

    def __init__(self, rewards: Mapping[str, float]) -> None:
        """Watch beside the trained rewards, given with their weights."""
        self.rewards = dict(rewards)
        self.first: dict[str, float | None] = {}
        self.said: set[str] = set()

    def evaluated(self, scores: Values, start: Values) -> list[str]:
        """Return what is new in an evaluation of held-out prompts."""
        rising = [label for label, weight in self.rewards.items() if weight * _change(start.get(label), scores.get(label)) > 0]
        watched = [label for label in WATCHED if label not in {*self.rewards, *self.said, HARMLESS}]
        fallen = [label for label in watched if rising and _fell(start.get(label), scores.get(label))]
        return [self._say(label, start[label], scores[label], rising) for label in fallen]

    def iterated(self, metrics: Values) -> list[str]:
        """Return what is new in an iteration: that the images of a group have become alike."""
        now = metrics.get(DIVERSITY)
        first = self.first.setdefault(DIVERSITY, now)
        if DIVERSITY in self.said or not _fell(first, now):
            return []
        return [self._say(DIVERSITY, first, now, ["training"])]

    def _say(self, label: str, before: float | None, now: float | None, rising: list[str]) -> str:
        self.said.add(label)
        what = f"{label} has fallen from {before:.3g} to {now:.3g}"
        if label == DIVERSITY:
            return f"{what}: the images of one prompt become alike; a lower learning rate or a KL term keeps them apart"
        return f"{what} while {' and '.join(rising)} rose: look at the images, the reward may be gamed"


def _change(before: float | None, now: float | None) -> float:
    return 0.0 if before is None or now is None else now - before


def _fell(before: float | None, now: float | None) -> bool:
    return before is not None and now is not None and now < (1 - FALL) * before
