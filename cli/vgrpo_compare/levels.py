"""How fast held-out curves rise: the cost at which each reaches a level, and the speed of one against another. Pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

STEP, MOST = 0.05, 12  # between default levels, and how many there are before they stand further apart
Axis = Literal["cost", "seconds"]


@dataclass(frozen=True)
class Point:
    """One evaluation of held-out prompts, with what training had cost by then."""

    iteration: int
    evaluations: int
    backwards: int
    cost: float
    """Network evaluations as the comparison counts them."""
    seconds: float
    means: Mapping[str, float | None]
    """Held-out means in native units, by label."""
    score: float | None
    """Their weighted sum; None where one is missing."""


@dataclass(frozen=True)
class Spread:
    """The median of some values, their range, and how many there are."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Summarise what is known of `values`; None where nothing is."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known), len(known)) if known else None


@dataclass(frozen=True)
class Mean:
    """The mean of some values, their sample deviation (None for a single one), and how many there are."""

    mean: float
    std: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Mean | None:
        """Summarise what is known of `values`; None where nothing is."""
        known = [value for value in values if value is not None]
        return cls(statistics.fmean(known), statistics.stdev(known) if known[1:] else None, len(known)) if known else None


def reached(curve: Sequence[Point], level: float, axis: Axis) -> float | None:
    """Return where on `axis` a curve is first at `level`: on the line from the evaluation before to the first one at or above it.

    A curve that begins at or above it is there at its first evaluation; one that never gets there, None.
    """
    before: tuple[float, float] | None = None
    for place, score in _known(curve, axis):
        if score >= level:
            return place if before is None else before[0] + (place - before[0]) * (level - before[1]) / (score - before[1])
        before = (place, score)
    return None


def _known(curve: Sequence[Point], axis: Axis) -> Iterator[tuple[float, float]]:
    for point in curve:
        if point.score is not None:
            yield (point.cost if axis == "cost" else point.seconds), point.score


def best(curve: Sequence[Point]) -> float | None:
    """Return the highest score of a curve."""
    return max((point.score for point in curve if point.score is not None), default=None)


def late(curve: Sequence[Point]) -> float | None:
    """Return the mean score over the last third of a curve's evaluations, without that of the start; None where one is missing."""
    scores = [point.score for point in curve if point.iteration]
    tail = scores[-math.ceil(len(scores) / 3) :] if scores else []
    known = [score for score in tail if score is not None]
    return statistics.fmean(known) if known and len(known) == len(tail) else None


def default_levels(curves: Sequence[Sequence[Point]]) -> tuple[float, ...]:
    """Return the multiples of 0.05 above where every curve starts and up to the best score of any; 12 at most, else wider apart."""
    starts = [curve[0].score for curve in curves if curve and curve[0].score is not None]
    tops = [top for curve in curves if (top := best(curve)) is not None]
    if not starts:
        return ()
    low, high = max(starts), max(tops)
    step = next(step for step in _steps() if (high - low) / step < MOST)
    first, last = math.floor(low / step + 1e-9) + 1, math.floor(high / step + 1e-9)
    return tuple(float(f"{index * step:.10g}") for index in range(first, last + 1))


def _steps() -> Iterator[float]:
    """Yield 0.05, 0.1, 0.2, 0.5, 1, ..."""
    yield STEP
    size = 0.1
    while True:
        yield from (size, 2 * size, 5 * size)
        size *= 10


def speeds(first: Mapping[int, float | None], other: Mapping[int, float | None]) -> list[float]:
    """Return how many times less `other` took than `first`, for each seed on which both got there at some cost."""
    pairs = [(first[seed], other[seed]) for seed in first if seed in other]
    return [one / two for one, two in pairs if one and two]
