"""Train the parts of the embedded pipeline: the autoencoder alone, then text encoders and transformer together.

Both are counted in optimizer steps, not in minutes, so that a seed gives the same model on a slow machine and on a fast one.
"""

from __future__ import annotations

import copy
import math
import string
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from diffusers import AutoencoderKL, StableDiffusion3Pipeline
from torch import Tensor, nn

from .build import TOKENS, latents
from .render import PALETTE, Sign, render

BATCH = 64
VAE_BATCH = 32
Log = Callable[[int, float], None]


class Pool(NamedTuple):
    """Pictures to train on: images [N, 3, H, W] in [-1, 1] and the sign that each caption asks for."""

    images: Tensor
    signs: list[Sign]


def pool(count: int, rng: np.random.Generator, words: Sequence[str], *, held_out: frozenset[str], noise: float) -> Pool:
    """Draw `count` signs, half with a word of the list and half with random letters, never a held-out word."""
    signs: list[Sign] = []
    while len(signs) < count:
        letters = rng.choice(list(string.ascii_lowercase), rng.integers(3, 5))
        word = str(rng.choice(words)) if rng.random() < 0.5 else "".join(letters)
        if word not in held_out:
            signs.append(Sign(word, str(rng.choice(list(PALETTE)))))
    pixels = np.stack([render(sign, rng, noise) for sign in signs])
    return Pool(torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1, signs)


def rate(step: int, steps: int, *, warmup: int, flat: float) -> float:
    """Return the learning rate's factor: linear warm-up, flat, then a cosine to 0.02 over the rest."""
    if step < warmup:
        return (step + 1) / warmup
    progress = max(0.0, (step / steps - flat) / (1 - flat))
    return 0.5 * (1 + math.cos(math.pi * progress)) * 0.98 + 0.02


class Average:
    """Follow a module with a moving average of its parameters, faster at the start."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.module, self.average, self.decay, self.steps = module, copy.deepcopy(module).eval(), decay, 0

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the module."""
        self.steps += 1
        weight = 1 - min(self.decay, self.steps / (self.steps + 20))
        torch._foreach_lerp_(list(self.average.parameters()), list(self.module.parameters()), weight)


def descend(
    module: nn.Module, loss: Callable[[], Tensor], steps: int, *, lr: float, flat: float, decay: float, log: Log
) -> nn.Module:
    """Minimise `loss()` over the parameters of `module` and return their moving average."""
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.97), weight_decay=0.01, fused=True)
    average, smooth = Average(module, decay), 0.0
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * rate(step, steps, warmup=100, flat=flat)
        value = loss()
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        average.update()
        smooth = value.item() if step == 0 else 0.99 * smooth + 0.01 * value.item()
        log(step + 1, smooth)
    return average.average


def fit_autoencoder(vae: AutoencoderKL, images: Tensor, steps: int, generator: torch.Generator, log: Log) -> AutoencoderKL:
    """Train on absolute and squared error with a small KL term; set scaling and shift to unit latents."""

    def loss() -> Tensor:
        batch = images[torch.randint(len(images), (VAE_BATCH,), generator=generator)]
        posterior = vae.encode(batch).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=generator)
        error = vae.decode(posterior.mean + posterior.std * noise).sample - batch
        kl = 0.5 * (posterior.mean**2 + posterior.var - 1 - posterior.logvar).mean()
        return error.abs().mean() + 2 * error.pow(2).mean() + 2e-3 * kl

    trained = descend(vae, loss, steps, lr=3e-3, flat=0.5, decay=0.99, log=log)
    assert isinstance(trained, AutoencoderKL)
    z = latents(trained, images[:2048])
    trained.register_to_config(scaling_factor=1 / z.std().item(), shift_factor=z.mean().item())
    return trained.requires_grad_(False)


def prompt_embeddings(encoders: nn.ModuleList, ids: Tensor, padding: int) -> tuple[Tensor, Tensor]:
    """Encode token ids as the pipeline's `encode_prompt` does, with gradients: hidden [B, L + padding, D] and pooled [B, D].

    `padding` is the number of zero tokens that the pipeline puts where the third text encoder is missing.
    """
    outputs = [encoder(ids, output_hidden_states=True) for encoder in encoders]
    hidden = torch.cat([output.hidden_states[-2] for output in outputs], dim=-1)
    pooled = torch.cat([output[0] for output in outputs], dim=-1)
    return torch.cat([hidden, hidden.new_zeros(len(ids), padding, hidden.shape[-1])], dim=1), pooled


def fit_pipeline(
    pipe: StableDiffusion3Pipeline, data: Callable[[int], Pool], steps: int, generator: torch.Generator, log: Log,
    prompt: Callable[[Sign], str],
) -> None:  # fmt: skip
    """Train transformer and text encoders by flow matching and put their moving averages into the pipeline.

    `data(step)` returns the pool in use at a step; the timestep is sigmoid(N(0.2, 1)), a little more noise than data.
    """
    module = nn.ModuleList([pipe.transformer, pipe.text_encoder, pipe.text_encoder_2]).train()
    state: dict[int, tuple[Tensor, Tensor]] = {}
    step = 0

    def batch() -> tuple[Tensor, Tensor]:
        current = data(step)
        if id(current) not in state:
            text = [prompt(sign) for sign in current.signs]
            ids = pipe.tokenizer(text, padding="max_length", max_length=TOKENS, truncation=True, return_tensors="pt").input_ids
            state.clear()
            state[id(current)] = latents(pipe.vae, current.images), ids
        z, ids = state[id(current)]
        chosen = torch.randint(len(z), (BATCH,), generator=generator)
        return z[chosen], ids[chosen]

    def loss() -> Tensor:
        nonlocal step
        z, ids = batch()
        step += 1
        noise = torch.randn(z.shape, generator=generator)
        t = torch.sigmoid(torch.randn(len(z), generator=generator) + 0.2)
        padding = int(torch.randint(3, (), generator=generator))
        hidden, pooled = prompt_embeddings(module[1:], ids, padding)
        weight = t.view(-1, 1, 1, 1)
        velocity = module[0]((1 - weight) * z + weight * noise, hidden, pooled, t * 1000, return_dict=False)[0]
        return (velocity - (noise - z)).pow(2).mean()

    average = descend(module, loss, steps, lr=1.2e-3, flat=0.6, decay=0.998, log=log)
    pipe.register_modules(transformer=average[0], text_encoder=average[1], text_encoder_2=average[2])
