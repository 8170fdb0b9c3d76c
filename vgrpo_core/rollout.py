"""One rollout: P prompts, G samples of each, drawn by any sampler and judged by every reward; B = P * G rows, group after group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from .keys import Purpose, generator
from .plugin import Prompt, Sampler
from .policy import Policy
from .samples import Samples
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

    def split(self, rows: int) -> Iterator[Draws]:
        """Yield micro-batches of at most `rows` rows."""
        for start in range(0, len(self), rows):
            part = slice(start, start + rows)
            yield replace(self, prompts=self.prompts[part], keys=self.keys[part])


@dataclass(frozen=True)
class Rollout:
    """What the objective learns from: finished latents and advantages, in rows of equal groups."""

    seed: int
    iteration: int
    group: int
    prompts: tuple[Prompt, ...]
    latents: Tensor
    """float32 [B, *D]."""
    advantages: Tensor
    """float32 [B]; 0 where not valid."""
    valid: Tensor
    """bool [B]: rows that no reward could judge take no part."""

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
    if latents.shape != noise.shape:
        raise ValueError(f'sampler "{sampler.name}" returned latents {list(latents.shape)} for noise {list(noise.shape)}')
    return latents.float()


class Collected(NamedTuple):
    """What `collect` returns."""

    latents: Tensor
    """float32 [B, *D]."""
    scores: dict[str, Tensor]
    """float64 [B] by label, NaN where missing."""
    images: Tensor
    """The first images, float32 [<= keep, 3, H, W] on the CPU."""


def collect(policy: Policy, sampler: Sampler, judges: Sequence[Judge], rows: Draws, *, micro: int, keep: int = 0) -> Collected:
    """Draw, decode and score micro-batch by micro-batch; images are let go after scoring, but for the first `keep`."""
    latents: list[Tensor] = []
    images: list[Tensor] = []
    scores: dict[str, list[Tensor]] = {judge.label: [] for judge in judges}
    for part in rows.split(micro):
        latents.append(sample(policy, sampler, part))
        with torch.no_grad():
            samples = Samples(part.prompts, policy.decode(latents[-1]))
        images.append(samples.images[: max(0, keep - sum(map(len, images)))].cpu())
        for judge in judges:
            scores[judge.label].append(judge(samples))
    return Collected(torch.cat(latents), {label: torch.cat(parts) for label, parts in scores.items()}, torch.cat(images))
