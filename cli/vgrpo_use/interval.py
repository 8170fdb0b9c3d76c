"""Means over images and how sure they are: a bootstrap over prompts, since the images of one prompt belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES, LEVEL, BLOCK = 10_000, 0.95, 500
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Clusters:
    """Values summed by prompt: sums [P] and counts [P], prompts without any left out."""

    sums: Array
    counts: Array

    @classmethod
    def of(cls, values: Array, prompts: Array) -> Clusters:
        """Sum values [B] by their prompts [B], numbered from 0; NaN are left out."""
        known = np.isfinite(values)
        counts = np.bincount(prompts[known])
        sums = np.bincount(prompts[known], weights=values[known])
        return cls(sums[counts > 0], counts[counts > 0])

    @property
    def mean(self) -> float | None:
        """Return the mean over all values, or None where there are none."""
        return float(self.sums.sum() / self.counts.sum()) if len(self.sums) else None

    def interval(self, seed: int) -> tuple[float, float] | None:
        """Return the percentile interval of the mean at 95 %, drawing prompts with replacement; None with fewer than two.

        Efron and Tibshirani, An Introduction to the Bootstrap, chapter 13; whole clusters are drawn, as in Davison and Hinkley,
        Bootstrap Methods and their Application, section 3.8.
        """
        size = len(self.sums)
        if size < 2:
            return None
        generator = np.random.default_rng(seed)
        drawn = (generator.integers(size, size=(BLOCK, size)) for _ in range(RESAMPLES // BLOCK))
        means = np.concatenate([self.sums[rows].sum(1) / self.counts[rows].sum(1) for rows in drawn])
        low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)

    def share(self, sign: int) -> float | None:
        """Return the share of prompts whose sum has a sign, 1 or -1."""
        return float((self.sums * sign > 0).mean()) if len(self.sums) else None


@dataclass(frozen=True)
class Compared:
    """One reward before and after, over the images that it judged on both sides; `better` and `worse` are shares of prompts."""

    before: float | None
    after: float | None
    difference: float | None
    interval: tuple[float, float] | None
    better: float | None
    worse: float | None
    prompts: int
    images: int
    missing: int


def compare(before: Array, after: Array, prompts: Array, *, seed: int, sign: int = 1) -> Compared:
    """Compare scores [B] of the same noise in pairs; `sign` is -1 where lower is better."""
    both = np.isfinite(before) & np.isfinite(after)
    first, second, change = (Clusters.of(np.where(both, x, np.nan), prompts) for x in (before, after, after - before))
    counts = len(change.sums), int(both.sum()), int((~both).sum())
    shares = change.share(sign), change.share(-sign)
    return Compared(first.mean, second.mean, change.mean, change.interval(seed), *shares, *counts)


@dataclass(frozen=True)
class Judged:
    """One reward of one set of weights."""

    mean: float | None
    interval: tuple[float, float] | None
    prompts: int
    images: int
    missing: int


def summarise(values: Array, prompts: Array, *, seed: int) -> Judged:
    """Summarise scores [B]."""
    found, known = Clusters.of(values, prompts), int(np.isfinite(values).sum())
    return Judged(found.mean, found.interval(seed), len(found.sums), known, len(values) - known)
