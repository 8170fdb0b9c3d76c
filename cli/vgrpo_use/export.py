"""`vgrpo export`: what a run has trained as diffusers reads it, loaded again and compared before it is handed over."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vgrpo_cli.training import settle
from vgrpo_core import VgrpoError
from vgrpo_core.errors import reason

from . import card, hub
from .restore import BASE, Model, Weights, new_folder, on_device, pick_device

if TYPE_CHECKING:
    import torch

    from .pipelines import Expected


@dataclass(frozen=True)
class Asked:
    """What was typed."""

    run: str
    to: Path
    checkpoint: str = "last"
    full: bool = False
    push_to_hub: str | None = None
    private: bool = False
    device: str | None = None


@dataclass(frozen=True)
class Job:
    """What to write, found sound before a model is loaded; `pipeline` tells a diffusers model, `whole` all of it from adapters."""

    weights: Weights
    folder: Path
    pipeline: bool
    whole: bool

    @classmethod
    def of(cls, asked: Asked) -> Job:
        """Check all that was typed."""
        from vgrpo_diffusers import Diffusers

        if asked.push_to_hub:
            hub.check_name(asked.push_to_hub)
        if asked.private and not asked.push_to_hub:
            raise VgrpoError("--private is about the hub; add --push-to-hub owner/name")
        weights = Weights.of(asked.run, asked.checkpoint, on_device(asked.device))
        if weights.checkpoint is None:
            raise VgrpoError(f"--checkpoint {BASE} is the model before training: there is nothing to export")
        backbone = weights.recipe.backbone
        pipeline = isinstance(backbone, Diffusers)
        if asked.full and not pipeline:
            raise VgrpoError(f'--full: backbone "{backbone.name}" is no diffusers pipeline; leave it out to write its weights')
        whole = isinstance(backbone, Diffusers) and (asked.full or backbone.lora is None)
        return cls(weights, new_folder(asked.to, "--to"), pipeline, whole)


def export(asked: Asked) -> Iterator[str]:
    """Write, check, describe and upload what was asked for; yield a line about each."""
    job = Job.of(asked)
    settle()
    partial = job.folder.with_name(f".{job.folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        yield from _write(job, partial, asked.push_to_hub)
        if job.folder.exists():
            job.folder.rmdir()  # it is empty, and not every system replaces a folder
        partial.replace(job.folder)
    except OSError as error:
        raise VgrpoError(f"{job.folder}: {error.strerror or reason(error)}; nothing was written") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    yield f"wrote {job.folder}"
    if asked.push_to_hub:
        yield f"uploaded to {hub.push(job.folder, asked.push_to_hub, private=asked.private)}"


def _write(job: Job, folder: Path, name: str | None) -> Iterator[str]:
    device = pick_device(job.weights.recipe)
    expected = _trained(job, folder, device)
    gc.collect()  # the trained model is gone, and there may be no room for two
    if expected:
        yield f"checked: {_check(job, folder, expected, device)}"
    else:
        yield f'not checked: backbone "{job.weights.recipe.backbone.name}" has written its own format'
    card.write(folder, card.Facts(job.weights, name or job.folder.name, job.whole, expected))


def _trained(job: Job, folder: Path, device: torch.device) -> Expected | None:
    """Load the trained model, write it, and return what it does; None where that is not known."""
    from vgrpo_diffusers import Diffusers

    recipe, model = job.weights.recipe, Model(job.weights.recipe, device)
    model.take(job.weights)
    if not isinstance(recipe.backbone, Diffusers):
        model.policy.export(folder)
        return None
    from vgrpo_diffusers.policy import PipelinePolicy

    from . import pipelines

    policy = model.policy
    assert isinstance(policy, PipelinePolicy)
    expected = pipelines.Expected.of(policy, recipe.eval.sampler)
    if job.whole:
        pipelines.write_whole(policy, recipe.backbone, folder)
    else:
        policy.export(folder)
    return expected


def _check(job: Job, folder: Path, expected: Expected, device: torch.device) -> str:
    from vgrpo_diffusers import Diffusers

    from . import pipelines

    recipe = job.weights.recipe
    assert isinstance(recipe.backbone, Diffusers)
    try:
        policy = pipelines.reloaded(recipe.backbone, folder, device, whole=job.whole)
        share = pipelines.check(expected, policy, recipe.eval.sampler, whole=job.whole)
    except Exception as error:  # whatever keeps it from loading keeps it from use
        what = f"{job.folder}: loaded again, it could not be shown to do what was trained, so it was removed"
        raise VgrpoError(f"{what}\n  {reason(error)}") from error
    return f"loaded again, it draws what the run draws (largest difference in latents {share:.1g} of the largest value)"
