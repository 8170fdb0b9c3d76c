"""The surrogate L(theta | o, c) of a finished sample's likelihood, and the clipped objective made of it.

R rows (samples), N pairs of time and noise, *D one latent. Everything here is float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from . import pairs as pair
from .advantages import soft_clip
from .policy import Policy
from .rollout import Rollout

if TYPE_CHECKING:
    from .vgrpo import VGRPO


class Measured(NamedTuple):
    """The surrogate of some rows and the data predictions that it is made of."""

    surrogate: Tensor
    """[R]."""
    data: Tensor
    """[R, N, *D]."""


def denoising_loss(data: Tensor, latents: Tensor, factor: Tensor | float = 1.0, *, adaptive: bool) -> Tensor:
    """Compare predicted data [R, N, *D] with latents [R, *D]: the mean square over D, [R, N] (method, section 2.3).

    `factor` [R, N, 1] turns an error of the data into one of the velocity or the noise. Adaptive: divided by its own mean
    absolute error, which takes no gradient.
    """
    error = (data - latents.unsqueeze(1)).flatten(2) * factor
    square = error.square().mean(2)
    if not adaptive:
        return square
    return square / error.detach().abs().mean(2).clamp(min=torch.finfo(square.dtype).tiny)


def clipped(ratio: Tensor, advantages: Tensor, clip: float | None) -> Tensor:
    """Return min(rho A, clip(rho, 1 - eps, 1 + eps) A): [R]."""
    if clip is None:
        return ratio * advantages
    return torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


class SurrogateUpdate:
    """Take the gradient steps of V-GRPO on one rollout.

    In a step whose weights are still those that drew the samples, the old surrogate is the surrogate itself, detached: no forward
    is spent on it, the ratio is 1 to the last bit and its gradient is minus the surrogate's.
    """

    def __init__(self, options: VGRPO, policy: Policy, rollout: Rollout, micro: int) -> None:
        self.options, self.policy, self.rollout = options, policy, rollout
        self.advantages = soft_clip(rollout.advantages, options.soft_clip).float()
        sizes = self.advantages.abs().view(-1, rollout.group)
        largest = sizes.topk(max(1, round(options.top * rollout.group))).indices
        self.learnt = rollout.valid & torch.zeros_like(sizes, dtype=torch.bool).scatter(1, largest, True).flatten()
        self.parts = options.steps if options.split else 1
        self.times = policy.axis()
        self.statistics: Sequence[str] = ("ratio", "surrogate", *(["ratio/clip_fraction"] if options.clip is not None else []))
        self.old: dict[int, Measured] = {}
        with torch.no_grad():
            for rows, _ in rollout.rounds(self._early(), micro):
                self._keep(rows, self.measure(rows))

    def rows(self, step: int) -> Tensor:
        """Return the rows of all ranks that `step` uses: valid, with a gradient, of its part of the groups where split."""
        use = self.learnt & ((self.advantages != 0) | bool(self.options.kl and step))
        return (use & self.rollout.part(step, self.parts)).nonzero().flatten()

    def loss(self, rows: Tensor, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return what `rows` add to the mean loss of `step`, and ratio and surrogate of each row."""
        new = self.measure(rows)
        old = self._old(rows, step, new)
        ratio = torch.exp(old.surrogate - new.surrogate)
        advantages = self.advantages[rows].to(ratio.device)
        loss = -clipped(ratio, advantages, self.options.clip)
        if self.options.kl and step:
            loss = loss + self.options.kl * (new.data - old.data).square().flatten(1).mean(1)
        count = int((self.rollout.valid & self.rollout.part(step, self.parts)).sum())
        beyond = (ratio - 1).abs() > (self.options.clip or torch.inf)
        found = (ratio.detach(), new.surrogate.detach(), beyond.float())
        return loss.sum() / count, dict(zip(self.statistics, found, strict=False))

    def measure(self, rows: Tensor) -> Measured:
        """Evaluate the surrogate of some rows: the mean of the denoising loss over their pairs."""
        latents = self.rollout.latents[rows - self.rollout.own.start]
        times, noise = self.pairs(rows)
        flat, texts = times.flatten(), [self.rollout.prompts[row].text for row in rows.tolist() for _ in times[0]]
        repeated = latents.repeat_interleave(times.shape[1], 0)
        z = self.policy.process.mix(repeated, noise.flatten(0, 1), flat)
        data = self.policy.process.data_from(self.policy.predict(z, flat, texts), z, flat).view(noise.shape)
        loss = denoising_loss(data, latents, self.factor(times), adaptive=self.options.adaptive)
        return Measured(loss.mean(1), data)

    def factor(self, times: Tensor) -> Tensor | float:
        """Return what an error of the data at times [R, N] is multiplied by: z stays, so that alpha dx = -sigma d(noise)."""
        alpha, sigma = (part.unsqueeze(-1) for part in self.policy.process.coefficients(times))
        return 1.0 if self.options.loss == "x" else (alpha if self.options.loss == "epsilon" else 1) / sigma

    def pairs(self, rows: Tensor) -> pair.Pairs:
        """Draw the pairs of some rows: equal for a group where shared."""
        options, (shape, device) = self.options, (self.rollout.latents.shape[1:], self.rollout.latents.device)
        keys = [self.rollout.key(row)[: 3 if options.shared else 4] for row in rows.tolist()]
        made = pair.draw(keys, options.pairs, shape=shape, times=self.times, stratified=options.stratified, span=options.span)
        return pair.Pairs(made.times.to(device), made.noise.to(device))

    def _early(self) -> Tensor:
        """Return the rows whose old surrogate step 0 won't measure: it has to be measured before the weights move."""
        first = self.rows(0)
        later = [self.rows(step) for step in range(1, max(self.parts, min(2, self.options.steps)))]
        return torch.cat([first[:0], *(rows[~torch.isin(rows, first)] for rows in later)])

    def _old(self, rows: Tensor, step: int, new: Measured) -> Measured:
        if step == 0:
            self._keep(rows, new)
            return Measured(new.surrogate.detach(), new.data.detach())
        now = [Measured(surrogate.detach(), data.detach()) for surrogate, data in zip(*new, strict=True)]
        found = [self.old.get(row, one) for row, one in zip(rows.tolist(), now, strict=True)]  # one that only keeps step has none
        return Measured(torch.stack([one.surrogate for one in found]), torch.stack([one.data for one in found]))

    def _keep(self, rows: Tensor, measured: Measured) -> None:
        data = measured.data.detach() if self.options.kl else measured.data.detach()[:, :0]
        for index, row in enumerate(rows.tolist()):
            self.old[row] = Measured(measured.surrogate[index].detach(), data[index])
