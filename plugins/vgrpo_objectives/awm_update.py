"""The loss of AWM (arXiv 2509.25050; weights and KL terms of the public code)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vgrpo_core import Policy
from vgrpo_core.rollout import Rollout
from vgrpo_core.surrogate import clipped, denoising_loss

from .forward_process import ForwardProcess, Noised, velocity_gap

if TYPE_CHECKING:
    from .awm import AWM

TINY = 1e-10  # the public code's: keeps the slope of the Huber loss finite


def log_probability(data: Tensor, noised: Noised, weight: str, power: float) -> Tensor:
    """Return minus the weighted flow-matching loss of predicted data [R, N, *D] at each pair: [R, N].

    The Huber loss is ((l + 1e-10)^power - 1e-10^power) / power of the mean squared error l of the velocity, times t.
    """
    error, t = denoising_loss(data, noised.latents, 1 / noised.sigma, adaptive=False), noised.times
    match weight:
        case "1":
            return -error
        case "t":
            return -t * error
        case "t2":
            return -t.square() * error
        case _:
            return -t * ((error + TINY).pow(power) - math.pow(TINY, power)) / power


class AWMUpdate:
    """Take the gradient steps of AWM on one rollout.

    The weights of step 0 are those that drew the samples: its old log-probability is the log-probability itself, detached, and
    no forward pass is spent on it. Later steps keep that value.
    """

    def __init__(self, options: AWM, policy: Policy, rollout: Rollout) -> None:
        self.options, self.rollout = options, rollout
        self.forward = ForwardProcess(policy, rollout, options.pairs, options.span, options.steps)
        bound = options.advantage_clip
        self.advantages = rollout.advantages.float().clamp(-bound, bound) / bound
        clips = ["ratio/clip_fraction"] if options.clip is not None else []
        self.statistics: Sequence[str] = ("ratio", "surrogate", *clips, *(f"kl/{copy}" for copy in options.kl_terms))

    def rows(self, step: int) -> Tensor:
        """Return the rows that `step` uses: valid, and with an advantage unless a KL term holds all."""
        return (self.rollout.valid & ((self.advantages != 0) | bool(self.options.kl_terms))).nonzero().flatten()

    def loss(self, rows: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what `rows` add to the mean loss of `step`, and ratio, surrogate and KL terms of each row."""
        o, noised = self.options, self.forward.noise(rows)
        copies = {copy: self.forward.predict_with(copy, noised, step) for copy in o.kl_terms}
        data = self.forward.predict(noised)
        new = log_probability(data, noised, o.weight, o.power)
        ratio = torch.exp(self._difference(new, noised, step))
        loss = -clipped(ratio, self.advantages[rows].to(ratio.device).unsqueeze(1), o.clip).mean(1)
        found = [ratio.mean(1), -new.mean(1)]
        if o.clip is not None:
            found.append(((ratio - 1).abs() > o.clip).float().mean(1))
        for copy, weight in o.kl_terms.items():
            found.append(velocity_gap(data, copies[copy], noised).mean(1))
            loss = loss + weight * found[-1]
        statistics = dict(zip(self.statistics, (part.detach() for part in found), strict=True))
        return loss.sum() / int(self.rollout.valid.sum()), statistics

    def _difference(self, new: Tensor, noised: Noised, step: int) -> Tensor:
        """Return new less old log-probability: [R, N], or [R, 1] where a sample has one ratio."""
        now = new.detach()
        old = self.forward.keep("old", noised, now) if step == 0 else self.forward.recall("old", noised, now)
        return (new - old).mean(1, keepdim=True) if self.options.ratio == "mean" else new - old
