"""Pairs (t, eps): where the surrogate of a sample is measured, and with which noise.

B samples, N pairs, *D one latent. A pair is a pure function of (run seed, iteration, prompt), and of the sample too where pairs are
independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .keys import generator


class Pairs(NamedTuple):
    """What `draw` returns."""

    times: Tensor
    """float32 [B, N]."""
    noise: Tensor
    """float32 [B, N, *D]."""


def positions(count: int, source: torch.Generator, *, stratified: bool, span: tuple[float, float]) -> Tensor:
    """Draw `count` positions in `span` of the schedule (0 is data, 1 is noise), one in each of `count` equal segments: [N]."""
    uniform = torch.rand(count, generator=source, dtype=torch.float64)
    if stratified:
        uniform = (torch.arange(count) + uniform) / count
    return span[0] + (span[1] - span[0]) * uniform


def warp(position: Tensor, times: Tensor) -> Tensor:
    """Turn schedule positions into times: linear between a schedule's `times` [steps + 1], which fall from noise to data."""
    place = (1 - position) * (len(times) - 1)
    low = place.floor().long().clamp(max=len(times) - 2)
    return torch.lerp(times.double()[low], times.double()[low + 1], place - low).float()


def draw(
    keys: Sequence[tuple[int, ...]], count: int, *, shape: Sequence[int], times: Tensor, stratified: bool, span: tuple[float, float]
) -> Pairs:
    """Draw the pairs of `keys` [B], each (run seed, iteration, prompt) or (run seed, iteration, prompt, sample).

    Equal keys have equal pairs: that is how a group shares them (method, section 2.1). `times` is the schedule, shift included,
    that positions are warped by after they are drawn.
    """
    made: dict[tuple[int, ...], Pairs] = {}
    for key in dict.fromkeys(keys):
        source = generator(key[0], "pairs", *key[1:])
        place = positions(count, source, stratified=stratified, span=span)
        made[key] = Pairs(warp(place, times), torch.randn(count, *shape, generator=source))
    chosen = [made[key] for key in keys]
    return Pairs(torch.stack([pair.times for pair in chosen]), torch.stack([pair.noise for pair in chosen]))
