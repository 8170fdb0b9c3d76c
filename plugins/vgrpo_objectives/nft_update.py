"""The loss of DiffusionNFT (arXiv 2509.16117), weighted as in its public code.

The positive and the negative policy are mixtures of network outputs. Predicted data are linear in the output for every
prediction type, so that the same mixtures of predicted data are theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from vgrpo_core import Policy
from vgrpo_core.rollout import Rollout
from vgrpo_core.surrogate import denoising_loss

from .forward_process import ForwardProcess, velocity_gap

if TYPE_CHECKING:
    from .diffusion_nft import DiffusionNFT

SPAN = (0.02, 1.0)  # that of V-GRPO


class DiffusionNFTUpdate:
    """Take the gradient steps of DiffusionNFT on one rollout."""

    def __init__(self, options: DiffusionNFT, policy: Policy, rollout: Rollout) -> None:
        self.options, self.rollout = options, rollout
        grid = policy.schedule(options.pairs).times[:-1] if options.grid else None
        self.forward = ForwardProcess(policy, rollout, options.pairs, SPAN, options.steps, grid)
        bound = options.advantage_clip
        self.goodness = 0.5 + rollout.advantages.float().clamp(-bound, bound) / (2 * bound)
        self.statistics: Sequence[str] = ("loss/positive", "loss/negative", *(["kl/reference"] if options.kl else []))

    def rows(self, step: int) -> Tensor:
        """Return all valid rows: one of advantage 0 is drawn to the policy that drew it."""
        return self.rollout.valid.nonzero().flatten()

    def loss(self, rows: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what `rows` add to the mean loss of `step`, and its parts for each row."""
        o, noised = self.options, self.forward.noise(rows)
        old = self.forward.predict_with("old", noised, step)
        reference = self.forward.predict_with("reference", noised, step) if o.kl else None
        new = self.forward.predict(noised)
        positive = denoising_loss((1 - o.beta) * old + o.beta * new, noised.latents, adaptive=True).mean(1)
        negative = denoising_loss((1 + o.beta) * old - o.beta * new, noised.latents, adaptive=True).mean(1)
        good = self.goodness[rows].to(new.device)
        loss, found = o.advantage_clip * (good * positive + (1 - good) * negative) / o.beta, [positive, negative]
        if reference is not None:
            found.append(velocity_gap(new, reference, noised).mean(1))
            loss = loss + o.kl * found[-1]
        statistics = dict(zip(self.statistics, (part.detach() for part in found), strict=True))
        return loss.sum() / int(self.rollout.valid.sum()), statistics
