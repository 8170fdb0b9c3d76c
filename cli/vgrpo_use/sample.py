"""`vgrpo sample`: images of a run's model, with noise that is the same for every checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from vgrpo_cli.training import settle
from vgrpo_core import Prompt, Sampler, VgrpoError
from vgrpo_core.prompts import load_prompts
from vgrpo_core.recipe import PromptSet, Recipe
from vgrpo_recipe.choice import choose
from vgrpo_recipe.registry import Registry

from .restore import Model, Weights, new_folder, next_free, on_device, pick_device

if TYPE_CHECKING:
    from torch import Tensor

    from vgrpo_core.rollout import Draws


@dataclass(frozen=True)
class Asked:
    """What was typed."""

    run: str
    texts: Sequence[str] = ()
    file: Path | None = None
    checkpoint: str = "last"
    seed: int | None = None
    count: int = 1
    steps: int | None = None
    out: Path | None = None
    device: str | None = None


@dataclass(frozen=True)
class Job:
    """Images to draw, found sound before a model is loaded; `held_out` is why held-out prompts are not known, if they are not."""

    weights: Weights
    sampler: Sampler
    prompts: Sequence[Prompt]
    places: Sequence[int]
    seed: int
    count: int
    out: Path
    held_out: str = ""

    @classmethod
    def of(cls, asked: Asked) -> Job:
        """Check all that was typed."""
        weights = Weights.of(asked.run, asked.checkpoint, on_device(asked.device))
        recipe, folder = weights.recipe, weights.run
        assert folder is not None
        held_out, why = _held_out(recipe)
        typed = _typed(asked)
        if why and not typed:
            raise VgrpoError(f"{why}\n  Name what to draw with --prompt or --prompts.")
        name = weights.label.zfill(6) if weights.checkpoint else weights.label
        out = new_folder(asked.out or next_free(folder / "images", name), "--out")
        places = [_place(prompt, held_out) for prompt in typed] if typed else range(len(held_out))
        seed = recipe.eval.seed if asked.seed is None else asked.seed
        return cls(weights, _sampler(recipe, asked.steps), typed or held_out, places, seed, asked.count, out, why if typed else "")

    def draws(self) -> Draws:
        """List the images: `count` of each prompt, one after the other."""
        from vgrpo_core.rollout import Draws

        keys = [(place, number) for place in self.places for number in range(self.count)]
        prompts = [prompt for prompt in self.prompts for _ in range(self.count)]
        return Draws(self.seed, "eval", tuple(prompts), tuple(keys))


def sample(asked: Asked) -> Iterator[Path]:
    """Draw what was asked for, micro-batch by micro-batch, and yield the file of each image once it is written."""
    return save(Job.of(asked))


def save(job: Job) -> Iterator[Path]:
    """Write the images of a job as PNG files, and index.json at the end."""
    from PIL import Image

    from vgrpo_core.checkpoint import write_json

    entries = list[dict[str, Any]]()
    for image in images(job):
        if not entries:
            job.out.mkdir(parents=True, exist_ok=True)
        number, each = divmod(len(entries), job.count)
        about = {"prompt": job.prompts[number].text, "number": number, "seed": job.seed, "sample": each, **_origin(job)}
        path = job.out / f"{number:03d}-seed{job.seed}-{each}.png"
        pixels = image.mul(255).round().byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(path, pnginfo=_text(about))
        entries.append({"file": path.name, **{key: about[key] for key in ("prompt", "number", "sample")}})
        yield path
    described = {"sampler": job.sampler.name, "steps": job.sampler.steps, "seed": job.seed}
    write_json(job.out / "index.json", {**_origin(job), **described, "images": entries})


def images(job: Job) -> Iterator[Tensor]:
    """Draw images [3, H, W] in [0, 1] on the CPU, as the run draws those of its evaluations."""
    settle()
    import torch

    from vgrpo_core.rollout import sample as finished

    model, micro = Model(job.weights.recipe, pick_device(job.weights.recipe)), job.weights.recipe.batch.micro
    model.take(job.weights)
    for part in job.draws().split(micro):
        with model.policy.evaluating(), torch.no_grad():
            latents = finished(model.policy, job.sampler, part)
            drawn = model.policy.decode(latents).cpu()
        yield from drawn


def _held_out(recipe: Recipe) -> tuple[Sequence[Prompt], str]:
    """Load the held-out prompts; where their source is out of reach, say why: others can be drawn all the same."""
    try:
        return load_prompts(recipe.eval.prompts), ""
    except VgrpoError as error:
        return (), str(error)


def _typed(asked: Asked) -> list[Prompt]:
    found = [Prompt(text) for text in asked.texts]
    if asked.file is not None:
        source = choose(Registry.discover(), "prompts", "file", Path()).plugin
        found += load_prompts([PromptSet(source.model_validate({"path": asked.file.resolve()}))])  # type: ignore[arg-type]
    return found


def _place(prompt: Prompt, held_out: Sequence[Prompt]) -> int:
    """Return what the noise of a prompt is keyed by: its place among the held-out ones, else a hash of its text.

    So an image does not depend on what is drawn besides.
    """
    texts = [other.text for other in held_out]
    if prompt.text in texts:
        return texts.index(prompt.text)
    return int.from_bytes(hashlib.blake2b(prompt.text.encode(), digest_size=8).digest(), "big")


def _sampler(recipe: Recipe, steps: int | None) -> Sampler:
    sampler = recipe.eval.sampler
    if steps is None:
        return sampler
    try:
        return type(sampler).model_validate({**sampler.model_dump(), "steps": steps})
    except ValidationError as error:
        raise VgrpoError(f'--steps {steps}: sampler "{sampler.name}" refuses it: {error.errors()[0]["msg"]}') from error


def _origin(job: Job) -> dict[str, str]:
    run = job.weights.run
    assert run is not None
    return {"run": run.resolve().name, "checkpoint": job.weights.label, "vgrpo": version("vgrpo")}


def _text(about: dict[str, Any]) -> Any:
    from PIL.PngImagePlugin import PngInfo

    found = PngInfo()
    for key, value in about.items():
        found.add_itxt(key, str(value))  # any script, where plain text chunks hold Latin-1 alone
    return found
