"""Make the embedded model: `python -m vgrpo_glyphs.pretrain [FOLDER]`, in less than half an hour on two CPU cores.

Three phases, counted in steps so that a seed means one model: the autoencoder; text encoders and transformer on clean pictures; the
same on faulty ones, so that reinforcement learning has something to do. In the last phase half of the captions do not fit: each
letter of the word is replaced with probability 1/2; in 35 % of the pictures the ink has a random colour, and in 35 % one or two
strokes cross the word. Part of what training with rewards then does is to find the clean mode of that mixture.

The pictures are drawn with fonts that matplotlib ships. No word of the validation and test splits is ever drawn.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from diffusers import AutoencoderKL, StableDiffusion3Pipeline

from vgrpo_core import Plugin, Prompt, Prompts, Reward, Samples
from vgrpo_core.scoring import Judge
from vgrpo_recipe.registry import Registry

from .build import HEIGHT, WIDTH, autoencoder, pipeline
from .fit import Log, Pool, fit_autoencoder, fit_pipeline, pool
from .render import Sign

AUTOENCODER_STEPS = 900
CLEAN_STEPS = 1000
FAULTY_STEPS = 500
NOISE = 0.5
PICTURES = 16000

log = logging.getLogger("vgrpo_glyphs")


class Words:
    """Hold the words of the prompt source `words`, by split, and the prompt of a sign."""

    def __init__(self, registry: Registry) -> None:
        self.source = _own(registry, "prompts", "words")
        assert issubclass(self.source, Prompts)

    def prompts(self, split: str) -> list[Prompt]:
        """Return the prompts of a split."""
        return list(self.source(split=split).load())

    def held_out(self) -> frozenset[str]:
        """Return the words that are never drawn."""
        return frozenset(prompt.metadata["text"] for split in ("validation", "test") for prompt in self.prompts(split))

    def prompt(self, sign: Sign) -> str:
        """Write the prompt of a sign, as the source would."""
        template: str = self.source.model_fields["template"].default
        return template.format(word=sign.word, color=sign.colour)


def progress(what: str) -> Log:
    """Return a function that logs every hundredth step."""
    start = time.monotonic()

    def note(step: int, loss: float) -> None:
        if step % 100 == 0:
            log.info("%s: step %d, loss %.4f, %.0f s", what, step, loss, time.monotonic() - start)

    return note


def _own(registry: Registry, kind: str, name: str) -> type[Plugin]:
    return next(offer.plugin for offer in registry.offers if (offer.distribution, offer.kind, offer.name) == ("vgrpo", kind, name))


@torch.no_grad()
def held_out_ocr(pipe: StableDiffusion3Pipeline, prompts: list[Prompt], registry: Registry) -> float:
    """Draw validation prompts as the recipe `words` does, and read them."""
    reward = _own(registry, "reward", "ocr")
    assert issubclass(reward, Reward)
    images = pipe(
        [prompt.text for prompt in prompts], height=HEIGHT, width=WIDTH, num_inference_steps=10, guidance_scale=1.0,
        max_sequence_length=1, generator=torch.Generator().manual_seed(0), output_type="pt",
    ).images  # fmt: skip
    found = Judge("ocr", "ocr", reward(mode="word").load(torch.device("cpu"))).examine(Samples(tuple(prompts), images.float()))
    return float(found.values.mean())


def pretrain(folder: Path, seed: int) -> None:
    """Train the three phases and save the pipeline in half precision."""
    torch.manual_seed(seed)
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    registry = Registry.discover()
    words = Words(registry)
    train = [prompt.metadata["text"] for prompt in words.prompts("train")]
    clean, faulty = (pool(PICTURES, rng, train, held_out=words.held_out(), noise=noise) for noise in (0.0, NOISE))
    vae = fit_autoencoder(autoencoder(), clean.images, AUTOENCODER_STEPS, generator, progress("autoencoder"))
    assert isinstance(vae, AutoencoderKL)
    pipe = pipeline(vae)
    pipe.set_progress_bar_config(disable=True)

    def data(step: int) -> Pool:
        return clean if step < CLEAN_STEPS else faulty

    fit_pipeline(pipe, data, CLEAN_STEPS + FAULTY_STEPS, generator, progress("pipeline"), words.prompt)
    log.info("held-out OCR (validation words): %.3f", held_out_ocr(pipe, words.prompts("validation"), registry))
    pipe.to(torch.float16).save_pretrained(folder)
    log.info("wrote %s", folder)


def main(
    folder: Annotated[Path, typer.Argument(help="where the pipeline is saved")] = Path("glyphs"),
    seed: Annotated[int, typer.Option(help="what everything random follows from")] = 0,
) -> None:
    """Train the embedded model from nothing."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    pretrain(folder, seed)


if __name__ == "__main__":
    typer.run(main)
