"""Signs that a run goes wrong: a reward that is being gamed, images that become alike, groups that teach nothing."""

from __future__ import annotations

from collections.abc import Mapping

from vgrpo_recipe.layout import WATCHED

FALL = 0.3  # of what it was at the start
HARMLESS = "dark_fraction"  # its fall is no sign; it is near 0 from the start for most models
DIVERSITY = "group/diversity"
SILENT = "group/zero_std_fraction"

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
        """Return what is new in an iteration: groups without a signal, or images of a group that have become alike."""
        found = list[str]()
        silent, now = metrics.get(SILENT) or 0.0, metrics.get(DIVERSITY)
        first = self.first.setdefault(DIVERSITY, now)
        if silent > 0.5 and SILENT not in self.said:
            self.said.add(SILENT)
            found.append(f"in {silent:.0%} of the groups all rewards are equal: they teach nothing; raise batch.group")
        if DIVERSITY not in self.said and _fell(first, now):
            found.append(self._say(DIVERSITY, first, now, ["training"]))
        return found

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
