"""What the lines of metrics.jsonl are made of. Missing is null, never 0."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from resource import RUSAGE_SELF, getrusage

import torch
from torch import Tensor

from .advantages import Advantages
from .events import Metrics
from .recipe import RewardEntry

COORDINATES = 256  # of latents: enough to see whether the images of a group become alike


def number(value: float | Tensor) -> float | None:
    """Return a finite float, or None."""
    value = float(value)
    return value if math.isfinite(value) else None


def of_scores(scores: Mapping[str, Tensor], *, prefix: str) -> Metrics:
    """Give each label's mean in native units, deviation and count of missing samples."""
    metrics: Metrics = {}
    for label, values in scores.items():
        known = values[values.isfinite()]
        metrics[f"{prefix}/{label}/mean"] = number(known.mean())
        metrics[f"{prefix}/{label}/std"] = number(known.std(correction=0)) if len(known) else None
        metrics[f"{prefix}/{label}/missing"] = len(values) - len(known)
    return metrics


def of_scaled(scores: Mapping[str, Tensor], entries: Sequence[RewardEntry], iteration: int) -> Metrics:
    """Give the mean after scale, offset and gate where there is any, what share a gate lets through, and weights that change."""
    found: Metrics = {}
    for entry in entries:
        values, name = scores[entry.label], f"reward/{entry.label}"
        if (entry.scale, entry.offset, entry.gate) != (1, 0, None):
            found[f"{name}/scaled"] = number(values.nanmean())
        if entry.gate:
            found[f"{name}/counts"] = number(values.isfinite().double().mean())
        if isinstance(entry.weight, tuple):
            found[f"{name}/weight"] = entry.weight_at(iteration)
    return found


def of_advantages(advantages: Advantages) -> Metrics:
    """Give deviation, largest magnitude, each reward's share, groups without signal and samples that nothing could judge."""
    valid = advantages.values[advantages.valid]
    shares: Metrics = {f"advantage/{label}/share": number(share) for label, share in advantages.shares.items()}
    shares |= {f"advantage/{label}/correlation": number(value) for label, value in advantages.correlations.items()}
    return shares | {
        "group/zero_std_fraction": advantages.zero_std_fraction,
        "advantage/std": number(valid.std(correction=0)) if len(valid) else None,
        "advantage/max_abs": number(valid.abs().max()) if len(valid) else None,
        "advantage/missing": int((~advantages.valid).sum()),
    }


def of_update(statistics: Mapping[str, Tensor], rows: Tensor, group: int) -> Metrics:
    """Summarise an objective's statistics [B] of the samples `rows`; those of other samples are NaN.

    A name such as "ratio" gives mean, extremes and `cv_in_group`; one with a slash, such as "ratio/clip_fraction", is a mean.
    """
    metrics: Metrics = {}
    for name, spread in statistics.items():
        values = spread[rows]
        if "/" in name:
            metrics[name] = number(values.mean())
            continue
        metrics |= {f"{name}/mean": number(values.mean()), f"{name}/min": number(values.min()), f"{name}/max": number(values.max())}
        metrics[f"{name}/cv_in_group"] = variation_in_group(spread, group)
    return metrics


def sketch(latents: Tensor) -> Tensor:
    """Take evenly spaced coordinates of latents [B, *D], 256 at most: float64 [C, B] on the CPU."""
    flat = latents.flatten(1)
    return flat[:, :: -(-flat.shape[1] // COORDINATES)].T.double().cpu()


def diversity(sketches: Tensor, group: int) -> float | None:
    """Return the deviation inside a group, over coordinates [C, B] in root mean square, averaged over groups."""
    return number(sketches.view(len(sketches), -1, group).var(2, correction=0).mean(0).sqrt().mean())


def peak(device: torch.device) -> float:
    """Return the most memory this process has held, in GB: allocated by PyTorch on a CUDA device, else resident on the machine."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return getrusage(RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def variation_in_group(values: Tensor, group: int) -> float | None:
    """Return the mean of deviation / mean over the groups of `values` [B] that are wholly known (not NaN)."""
    grouped = values.double().view(-1, group)
    whole = grouped[grouped.isfinite().all(1)]
    return number((whole.std(1, correction=0) / whole.mean(1)).mean()) if len(whole) else None
