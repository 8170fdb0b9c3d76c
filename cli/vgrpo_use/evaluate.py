"""`vgrpo evaluate`: held-out prompts judged before and after training with the same noise, and how sure the difference is."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vgrpo_cli import folders
from vgrpo_cli.shipped import find
from vgrpo_cli.training import settle
from vgrpo_core import VgrpoError
from vgrpo_core.recipe import Recipe
from vgrpo_recipe import load
from vgrpo_recipe.plan import unbegun

from .interval import LEVEL, RESAMPLES, Compared, Judged, compare, summarise
from .restore import BASE, KEPT, LAST, Model, Weights, find_checkpoint, find_run, next_free, on_device, pick_device

if TYPE_CHECKING:
    from .judge import Bench, Found


@dataclass(frozen=True)
class Asked:
    """What was typed."""

    target: str
    recipe: str | None = None
    checkpoint: str | None = None
    against: str | None = None
    overrides: Sequence[str] = ()
    samples: int | None = None
    out: Path | None = None
    device: str | None = None

    @property
    def sets(self) -> list[str]:
        """Return all overrides of the recipe that says what to judge."""
        return [*self.overrides, *([f"eval.samples={self.samples}"] if self.samples else []), *on_device(self.device)]


@dataclass(frozen=True)
class Side:
    """Weights with the name that the table and the file call them by."""

    name: str
    weights: Weights


@dataclass(frozen=True)
class Job:
    """What to judge, found sound before anything is loaded: one side alone, or two to compare; `recipe` says on what and how."""

    recipe: Recipe
    sides: Sequence[Side]
    out: Path

    @classmethod
    def of(cls, asked: Asked) -> Job:
        """Check all that was typed."""
        run = _run_or_model(asked)
        recipe, side = _of_run(run, asked) if run else _of_model(asked)
        sides = [side]
        if asked.against:
            sides = [_against(asked.against), side]
        elif side.weights.checkpoint:
            sides = [Side(BASE, Weights(side.weights.recipe, None, run)), side]
        if len({side.name for side in sides}) < len(sides):
            sides = _told_apart(sides)
        return cls(recipe, sides, _out(asked, run, "-".join(Path(side.name).name for side in sides)))


@dataclass(frozen=True)
class Evaluation:
    """What was found, by label."""

    job: Job
    rewards: Mapping[str, Compared | Judged]
    prompts: int
    gaps: Sequence[str]

    @property
    def summary(self) -> dict[str, Any]:
        """Return everything but single images, ready for JSON."""
        names = [side.name for side in self.job.sides]
        noise = {"prompts": self.prompts, "samples": self.job.recipe.eval.samples, "seed": self.job.recipe.eval.seed}
        bootstrap = {"level": LEVEL, "resamples": RESAMPLES}
        rewards = {label: asdict(found) for label, found in self.rewards.items()}
        return {"vgrpo": version("vgrpo"), "weights": names, **noise, "bootstrap": bootstrap, "rewards": rewards}


def evaluate(asked: Asked) -> Evaluation:
    """Judge what was asked for, and write it, image by image, to a JSON file."""
    job = Job.of(asked)
    settle()
    from vgrpo_core.checkpoint import write_json

    from .judge import Bench

    device, model = pick_device(job.recipe), None
    found: list[dict[str, Found]] = []
    with redirect_stdout(sys.stderr):  # plugins may print, and --json promises JSON alone
        bench = Bench(job.recipe, device)
        for side in reversed(job.sides):  # a checkpoint that can't be read is heard of first
            if model is None or not model.fits(side.weights.recipe):
                model = None  # two large models need not fit at a time
                model = Model(side.weights.recipe, device)
            model.take(side.weights)
            found.insert(0, bench.judge(model.policy))
    evaluation = Evaluation(job, _rewards(bench, found), int(bench.prompts[-1]) + 1, bench.gaps())
    job.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(job.out, {**evaluation.summary, "recipe": job.recipe.table, "images": _images(bench, job.sides, found)})
    return evaluation


def _run_or_model(asked: Asked) -> Path | None:
    """Tell a run, which has a recipe of its own, from a model, which needs one."""
    try:
        return find_run(asked.target)
    except VgrpoError as error:
        if asked.recipe is None:
            raise VgrpoError(f"{error}\n  A model, as its folder or hub id, needs --recipe to say how to judge it.") from error
        return None


def _of_run(run: Path, asked: Asked) -> tuple[Recipe, Side]:
    checkpoint = find_checkpoint(run, asked.checkpoint or LAST)
    kept = load(run / KEPT, [] if asked.recipe else asked.sets, track=False)
    recipe = load(find(asked.recipe), asked.sets, track=False) if asked.recipe else kept
    weights = Weights(kept, checkpoint, run)
    return recipe, Side(f"{run.resolve().name}@{weights.label}", weights)


def _of_model(asked: Asked) -> tuple[Recipe, Side]:
    if asked.checkpoint:
        raise VgrpoError(f'--checkpoint {asked.checkpoint}: "{asked.target}" is no run; a model has no checkpoints')
    recipe = unbegun(load(find(str(asked.recipe)), [*asked.sets, f"backbone.model={json.dumps(asked.target)}"], track=False))
    return recipe, Side(asked.target.rstrip("/"), Weights(recipe))


def _against(text: str) -> Side:
    """Find RUN or RUN@CHECKPOINT."""
    run, at, checkpoint = text.rpartition("@")
    weights = Weights.of(run, checkpoint) if at else Weights.of(text, LAST)
    assert weights.run is not None
    return Side(f"{weights.run.resolve().name}@{weights.label}", weights)


def _told_apart(sides: Sequence[Side]) -> list[Side]:
    """Name runs whose folders have one name by their paths."""
    found = [Side(f"{side.weights.run}@{side.weights.label}", side.weights) for side in sides]
    if len({(side.weights.run and side.weights.run.resolve(), side.weights.label) for side in sides}) == 1:
        raise VgrpoError(f"--against: {found[0].name} would be compared with itself; choose another checkpoint or run")
    return found


def _out(asked: Asked, run: Path | None, name: str) -> Path:
    out = next_free((run or Path()) / "evaluations", name, ".json") if asked.out is None else asked.out
    if out.exists():
        raise VgrpoError(f"--out {out} exists and is not overwritten; name another file")
    folders.check_place(out.parent, "--out")
    return out


def _rewards(bench: Bench, found: Sequence[Mapping[str, Found]]) -> dict[str, Compared | Judged]:
    """Summarise each label over the images that its judge was asked about."""
    recipe, rewards = bench.recipe, dict[str, Compared | Judged]()
    lowered = {entry.label for entry in recipe.rewards if entry.weight_at(recipe.run.iterations) * entry.scale < 0}
    for judge in bench.judges:
        asked, label = bench.asked(judge), judge.label
        first, *others = [side[label].scores[asked] for side in found]
        prompts, seed, sign = bench.prompts[asked], recipe.eval.seed, -1 if label in lowered else 1
        if others:
            rewards[label] = compare(first, others[0], prompts, seed=seed, sign=sign)
        else:
            rewards[label] = summarise(first, prompts, seed=seed)
    return rewards


def _images(bench: Bench, sides: Sequence[Side], found: Sequence[Mapping[str, Found]]) -> list[dict[str, Any]]:
    """List every image with what each judge said of it, side by side."""
    images = list[dict[str, Any]]()
    for row, (prompt, (number, sample)) in enumerate(zip(bench.rows.prompts, bench.rows.keys, strict=True)):
        said = {
            side.name: {label: _said(each, row) for label, each in part.items()} for side, part in zip(sides, found, strict=True)
        }
        images.append({"prompt": prompt.text, "number": number, "sample": sample, "judged": said})
    return images


def _said(found: Found, row: int) -> dict[str, Any]:
    score = float(found.scores[row]) if np.isfinite(found.scores[row]) else None
    return {"score": score, "evidence": found.evidence[row]} if found.evidence[row] else {"score": score}
