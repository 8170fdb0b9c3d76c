"""Advantages: how much better a sample is than its group, with missing scores masked.

P prompts (groups), G samples of each, R rewards. Statistics are float64 over what was scored; NaN is the missing value and nothing
else is: whatever is not finite has become NaN before it comes here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

FLAT = 1e-6  # a group whose spread is below this share of its values' magnitude differs by rounding only

Scale = Literal["group", "batch"]
Combine = Literal["normalize_then_sum", "sum_then_normalize"]


class Advantages(NamedTuple):
    """One number a sample, and what the run logs of them."""

    values: Tensor
    """float64 [P, G]; 0 where not valid."""
    valid: Tensor
    """bool [P, G]: whether any reward could judge the sample."""
    zero_std_fraction: float
    """Share of groups whose advantages are all zero."""
    shares: dict[str, float]
    """Each label's share of the variance that the advantages are made of; NaN where there is none."""
    correlations: dict[str, float]
    """Of each label's part with the advantages, over the samples that have both; NaN where one of them does not vary."""


def standardise(scores: Tensor, *, scale: Scale = "group") -> Tensor:
    """Subtract the group's mean and divide by the population deviation of the group or the batch: [P, G] -> [P, G].

    NaN stays NaN. A group of equal scores gives exact zeros; one with fewer than two scores is missing altogether.
    """
    scores = scores.double()
    present = scores.isfinite()
    count = present.sum(1, keepdim=True)
    values = scores.where(present, 0.0)
    mean = values.sum(1, keepdim=True) / count.clamp(min=1)
    centred = (scores - mean).where(present, 0.0)
    flat = centred.abs().amax(1, keepdim=True) <= FLAT * values.abs().amax(1, keepdim=True)
    centred = centred.where(~flat, 0.0)
    variance = centred.square().sum(1, keepdim=True) / count.clamp(min=1)
    if scale == "batch":
        total = present.sum().clamp(min=1)
        variance = (values - values.sum() / total).where(present, 0.0).square().sum() / total
    result = centred / variance.sqrt().where(variance > 0, 1.0)
    return result.where(present & (count >= 2), torch.nan)


def combine(
    scores: Mapping[str, Tensor], weights: Mapping[str, float], *, use: Combine = "normalize_then_sum", scale: Scale = "group"
) -> Advantages:
    """Weigh the rewards [P, G] of each label into one advantage a sample.

    "normalize_then_sum" standardises each reward by itself, so that its unit does not matter, and leaves out what is missing;
    "sum_then_normalize" weighs the scores first, and a sample that lacks one of them is missing. A weight of 0 only watches.
    """
    used = {label: weight for label, weight in weights.items() if weight != 0}
    first = use == "normalize_then_sum"
    single = [standardise(scores[label], scale=scale) if first else scores[label].double() for label in used]
    parts = torch.stack([weight * part for weight, part in zip(used.values(), single, strict=True)])
    values = parts.nansum(0).where(parts.isfinite().any(0), torch.nan) if first else standardise(parts.sum(0), scale=scale)
    valid = values.isfinite()
    values = values.where(valid, 0.0)
    spread = (parts - parts.nanmean(2, keepdim=True)).square().nansum((1, 2))
    shares = dict(zip(used, (spread / spread.sum()).tolist(), strict=True))
    correlations = {label: _correlation(part, values, valid) for label, part in zip(used, parts, strict=True)}
    return Advantages(values, valid, (values == 0).all(1).double().mean().item(), shares, correlations)


def _correlation(part: Tensor, values: Tensor, valid: Tensor) -> float:
    both = valid & part.isfinite()
    return torch.corrcoef(torch.stack([part[both], values[both]]))[0, 1].item() if both.sum() > 1 else math.nan


def soft_clip(values: Tensor, eta: float | None) -> Tensor:
    """Bound advantages smoothly: eta tanh(A / eta) (method, section 3)."""
    return values if eta is None else eta * torch.tanh(values / eta)
