"""The commands `sample`, `evaluate` and `export`, as typer functions; nothing heavy is imported before one is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vgrpo_cli.listing import say

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or its name under runs/.")]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="Where to work: cpu, cuda, ... [default: as the recipe says]")]


def sample(
    run: RunArgument,
    prompt: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="What to draw; repeatable.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="More of it: .txt, .jsonl, .json or .csv. [default: the held-out prompts]")
    ] = None,
    checkpoint: Annotated[str, typer.Option(metavar="WHICH", help="An iteration, last, best, or base: before training.")] = "last",
    seed: Annotated[int | None, typer.Option(metavar="K", min=0, help="Seed of the noise. [default: that of evaluation]")] = None,
    count: Annotated[int, typer.Option(metavar="N", min=1, help="Images per prompt.")] = 1,
    steps: Annotated[int | None, typer.Option(metavar="S", min=1, help="Steps of the sampler. [default: as evaluation]")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where to write. [default: images/WHICH in the run]")] = None,
    device: Device = None,
) -> None:
    """Draw images with what a run has trained.

    The noise is the same for every checkpoint, so that images compare.
    """
    from .sample import Asked, Job, save

    job = Job.of(Asked(run, prompt or [], prompts, checkpoint, seed, count, steps, out, device))
    if job.held_out:
        typer.echo(f"warning: {job.held_out}\n  Held-out prompts are drawn with other noise than in the run.", err=True)
    for path in save(job):
        typer.echo(path)


def evaluate(
    target: Annotated[str, typer.Argument(metavar="RUN", help="A run, or with --recipe a model: its folder or hub id.")],
    recipe: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="Says what to judge and how. [default: the run's own recipe]")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="WHICH", help="An iteration, last, best, or base: before training. [default: last]")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="RUN[@WHICH]", help="What to compare with. [default: the model before training]")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a value of the recipe; repeatable.")
    ] = None,
    samples: Annotated[int | None, typer.Option(metavar="N", min=1, help="Images per prompt. [default: the recipe's]")] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write. [default: evaluations/ in the run]")] = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Judge held-out prompts before and after training.

    Both with the same noise.
    """
    from .evaluate import Asked
    from .evaluate import evaluate as judged
    from .table import lines

    found = judged(Asked(target, recipe, checkpoint, against, overrides or [], samples, out, device))
    for gap in found.gaps:
        typer.echo(f"warning: {gap}", err=True)
    if as_json:
        typer.echo(json.dumps({**found.summary, "file": str(found.job.out)}, indent=2))
    else:
        say(lines(found))


def export(
    run: RunArgument,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write; an empty folder, or a new one.")],
    checkpoint: Annotated[str, typer.Option(metavar="WHICH", help="An iteration, last or best.")] = "last",
    full: Annotated[bool, typer.Option("--full", help="Write the whole pipeline, with adapters merged into it.")] = False,
    push_to_hub: Annotated[str | None, typer.Option(metavar="ID", help="Upload it to the hub as owner/name.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Make the repository on the hub a private one.")] = False,
    device: Device = None,
) -> None:
    """Write what was trained for diffusers, with a model card.

    What was written is loaded again and has to draw what the run draws.
    """
    from .export import Asked
    from .export import export as written

    say(written(Asked(run, to, checkpoint, full, push_to_hub, private, device)))
