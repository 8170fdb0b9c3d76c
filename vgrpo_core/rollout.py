"""One rollout: P prompts, G samples of each, drawn by any sampler and judged by every reward; B = P * G rows, group after group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .copies import Copies
from .errors import Diverged
from .keys import Purpose, generator
from .plugin import Prompt, Sampler, StochasticSampler, Trajectory
from .policy import Policy
from .ranks import Ranks
from .samples import Samples, Scores
from .scoring import Judge


@dataclass(frozen=True)
class Draws:
    """Say which images to draw: one prompt and one noise key a row."""

    seed: int
    purpose: Purpose
    prompts: tuple[Prompt, ...]
    keys: tuple[tuple[int, ...], ...]
    """The place of each row: (iteration, prompt, sample) in training, (prompt, sample) in evaluation."""

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.prompts)

    def of(self, rows: range) -> Draws:
        """Return some of the rows."""
        return replace(self, prompts=self.prompts[rows.start : rows.stop], keys=self.keys[rows.start : rows.stop])

    def split(self, rows: int) -> Iterator[Draws]:
        """Yield micro-batches of at most `rows` rows."""
        return (self.of(range(start, start + rows)) for start in range(0, len(self), rows))


@dataclass(frozen=True)
class Rollout:
    """What the objective learns from, in rows of equal groups: all ranks know every row, but for the latents of others."""

    seed: int
    iteration: int
    group: int
    prompts: tuple[Prompt, ...]
    latents: Tensor
    """float32 [own rows, *D]."""
    advantages: Tensor
    """float32 [B]; 0 where not valid."""
    valid: Tensor
    """bool [B]: rows that no reward could judge take no part."""
    ranks: Ranks = field(default_factory=Ranks)
    copies: Copies = field(default_factory=lambda: Copies({}))
    trajectory: Trajectory | None = None
    """Of the own rows, where a stochastic sampler drew them."""

    @property
    def own(self) -> range:
        """Return the rows that this rank has drawn."""
        return self.ranks.share(len(self.prompts))

    def part(self, step: int, parts: int) -> Tensor:
        """Tell the rows of the groups that a gradient step learns from, which is one part of `parts`: bool [B]."""
        return torch.arange(len(self.prompts)) // self.group % parts == step % parts

    def rounds(self, rows: Tensor, size: int) -> Iterator[tuple[Tensor, bool]]:
        """Yield this rank's part of `rows` in micro-batches; False marks one that only keeps sharded ranks in step."""
        return self.ranks.rounds(rows, self.own, size)

    def key(self, row: int) -> tuple[int, int, int, int]:
        """Return (run seed, iteration, prompt, sample) of a row."""
        return self.seed, self.iteration, row // self.group, row % self.group


def draws(seed: int, purpose: Purpose, prompts: Sequence[Prompt], samples: int, *place: int) -> Draws:
    """List `samples` draws of each prompt, group after group."""
    keys = tuple((*place, prompt, sample) for prompt in range(len(prompts)) for sample in range(samples))
    return Draws(seed, purpose, tuple(prompt for prompt in prompts for _ in range(samples)), keys)


@torch.no_grad()
def sample(policy: Policy, sampler: Sampler, part: Draws) -> Tensor:
    """Draw finished latents [B, *D]; the sampler sees a function of latents and time alone."""
    texts = [prompt.text for prompt in part.prompts]
    noise = policy.noise(texts, [generator(part.seed, part.purpose, *key) for key in part.keys])
    latents = sampler.sample(lambda z, t: policy.predict(z, t, texts), noise, policy.schedule(sampler.steps))
    return _checked(sampler, latents, noise).float()


@torch.no_grad()
def explore(policy: Policy, sampler: StochasticSampler, part: Draws) -> Trajectory:
    """Draw finished latents and keep the noisy steps on the way; the noise of a step is keyed as that of the start is."""
    texts = [prompt.text for prompt in part.prompts]
    starts = [(*key[:-1], 0) for key in part.keys] if sampler.same_start else part.keys
    noise = policy.noise(texts, [generator(part.seed, part.purpose, *key) for key in starts])

    def draw(step: int) -> Tensor:
        sources = [generator(part.seed, "steps", *key, step) for key in part.keys]
        return torch.stack([torch.randn(noise.shape[1:], generator=source) for source in sources]).to(noise.device)

    schedule, iteration = policy.schedule(sampler.steps), part.keys[0][0]
    found = sampler.explore(lambda z, t: policy.predict(z, t, texts), noise, schedule, draw, iteration)
    _checked(sampler, found.latents, noise)
    return found


def _checked(sampler: Sampler, latents: Tensor, noise: Tensor) -> Tensor:
    if latents.shape != noise.shape:
        raise ValueError(f'sampler "{sampler.name}" returned latents {list(latents.shape)} for noise {list(noise.shape)}')
    if not latents.isfinite().all():
        raise Diverged("the model draws latents that are not finite: its weights have diverged; lower optimizer.lr")
    return latents


class Collected(NamedTuple):
    """What `collect` returns."""

    latents: Tensor
    """float32 [B, *D]."""
    trajectory: Trajectory | None
    """The noisy steps on the way to them, where a stochastic sampler drew training rows."""
    scores: dict[str, Tensor]
    """float64 [B] by label, NaN where missing."""
    images: list[Tensor]
    """The first `keep` images, float32 [3, H, W] on the CPU."""
    evidence: dict[str, list[Mapping[str, Any]]]
    """What the scores of these images were made from, by label; an empty table where a reward does not say."""


def collect(policy: Policy, sampler: Sampler, judges: Sequence[Judge], rows: Draws, *, micro: int, keep: int = 0) -> Collected:
    """Draw, decode and score micro-batch by micro-batch; images are let go after scoring, but for the first `keep`.

    The judges work on one micro-batch, in a thread of their own, while the next one is drawn.
    """
    latents, steps, images, scores = list[Tensor](), list[Trajectory](), list[Tensor](), list[Future[list[Scores]]]()
    with ThreadPoolExecutor(1) as judging:
        for part in rows.split(micro):
            if isinstance(sampler, StochasticSampler) and rows.purpose == "noise":
                steps.append(explore(policy, sampler, part))
            latents.append(steps[-1].latents if steps else sample(policy, sampler, part))
            with torch.no_grad():
                samples = Samples(part.prompts, policy.decode(latents[-1]))
            images += samples.images[: max(0, keep - len(images))].cpu()
            if scores:  # images must not pile up, and a failure must not wait
                scores[-1].result()
            scores.append(judging.submit(lambda samples: [judge.examine(samples) for judge in judges], samples))
    columns, evidence = dict[str, Tensor](), dict[str, list[Mapping[str, Any]]]()
    for at, judge in enumerate(judges):
        parts = [each.result()[at] for each in scores]
        columns[judge.label] = torch.cat([torch.empty(0, dtype=torch.float64), *(part.values for part in parts)])
        evidence[judge.label] = [row for part in parts for row in part.evidence or [{}] * len(part.values)][: len(images)]
    drawn = torch.cat(latents) if latents else torch.empty(0)
    joined = [torch.cat(part) for part in list(zip(*steps, strict=True))[:4]]
    trajectory = steps[0]._replace(latents=drawn, before=joined[1], after=joined[2], mean=joined[3]) if steps else None
    return Collected(drawn, trajectory, columns, images, evidence)
