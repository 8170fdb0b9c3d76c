"""Find a run and the weights in it, and load its model with any of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vgrpo_cli import typed
from vgrpo_cli.folders import RUNS, check_place, checkpoints
from vgrpo_core import VgrpoError
from vgrpo_core.errors import nearest
from vgrpo_core.recipe import Recipe
from vgrpo_recipe import load

if TYPE_CHECKING:
    import torch

    from vgrpo_core import Policy

BASE, BEST, LAST = "base", "best", "last"
KEPT = "recipe.toml"


@dataclass(frozen=True)
class Weights:
    """Weights to draw with: the recipe of their model, and a checkpoint, or none for the model before training."""

    recipe: Recipe
    checkpoint: Path | None = None
    run: Path | None = None

    @classmethod
    def of(cls, run: str, which: str, overrides: Sequence[str] = ()) -> Weights:
        """Find a run and a checkpoint of it, and read the recipe that it kept."""
        folder = find_run(run)
        checkpoint = find_checkpoint(folder, which)
        return cls(load(folder / KEPT, overrides, track=False), checkpoint, folder)

    @property
    def iteration(self) -> int:
        """Return after which iteration they were saved; 0 before training."""
        return int(self.checkpoint.name) if self.checkpoint else 0

    @property
    def label(self) -> str:
        """Name them: "base", or the iteration."""
        return str(self.iteration) if self.checkpoint else BASE


def find_run(name: str) -> Path:
    """Return the folder that RUN means, its path or its name under runs/; one that is none is a VgrpoError."""
    for path in (Path(name), RUNS / name):
        if (path / KEPT).is_file():
            return path
    if Path(name).is_dir():
        raise VgrpoError(f"{name}: the folder holds no {KEPT}, so it is no run")
    known = sorted(path.parent.name for path in RUNS.glob(f"*/{KEPT}"))
    what, there = f'no run "{name}"{nearest(Path(name).name, known)}', ", ".join(known) or "none"
    raise VgrpoError(f"{what}\n  Runs in {RUNS.resolve()}: {there}. Anything else is the path of a run's folder.")


def find_checkpoint(run: Path, which: str) -> Path | None:
    """Return a checkpoint of a run: that of an iteration, "last" or "best"; None for "base". A VgrpoError lists what there is."""
    from vgrpo_core.checkpoint import complete

    best, saved = complete(run / BEST), checkpoints(run)
    named = {str(int(path.name)): path for path in sorted([*best, *saved], key=lambda path: path.name)}
    named |= {name: found[-1] for name, found in ((BEST, best), (LAST, saved)) if found}
    key = str(int(which)) if which.isdecimal() else which
    if key != BASE and key not in named:
        hint = "" if key.isdecimal() else nearest(key, [*named, BASE])
        there = [f"{name} (iteration {int(path.name)})" if name in (BEST, LAST) else name for name, path in named.items()]
        raise VgrpoError(f'{run}: no checkpoint "{which}"{hint}\n  There are: {", ".join([*there, BASE])}.')
    return named.get(key)


def pick_device(recipe: Recipe) -> torch.device:
    """Return the recipe's device, once it is known to be there."""
    return typed.device(recipe.run.device, f'device "{recipe.run.device}" can\'t be used here', "Choose another with --device.")


class Model:
    """A recipe's model, which takes the weights of any run that trained the same one."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        """Load it as a run does, so that it is the model before training."""
        import torch

        from vgrpo_core.keys import seed

        self.made_by = recipe.backbone, recipe.run.seed, recipe.run.init
        torch.manual_seed(seed(recipe.run.seed, "start-up"))
        self.policy = recipe.backbone.load(device)
        if recipe.run.init:
            begin(self.policy, recipe.run.init)
        self.base = {name: value.to("cpu", copy=True) for name, value in self.policy.state().items()}

    def fits(self, recipe: Recipe) -> bool:
        """Tell whether another recipe's model is this one."""
        return self.made_by == (recipe.backbone, recipe.run.seed, recipe.run.init)

    def take(self, weights: Weights) -> None:
        """Put weights in place, averaged where the run evaluates their average; those of another model are a VgrpoError."""
        if weights.checkpoint is None:
            self.policy.restore(self.base)
        else:
            begin(self.policy, weights.checkpoint)


def begin(policy: Policy, path: Path) -> None:
    """Give a policy what a run evaluates and exports; what can't be read or does not fit is a VgrpoError."""
    from vgrpo_core import checkpoint

    try:
        checkpoint.begin(policy, path)
    except VgrpoError as error:
        raise VgrpoError(str(error)) from error  # exit code 2: no run has failed


def on_device(device: str | None) -> list[str]:
    """Write `--device` as an override of a recipe."""
    return [] if device is None else [f"run.device={json.dumps(device)}"]


def new_folder(path: Path, option: str) -> Path:
    """Check that a folder to write is empty or not there yet."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        what = "the folder is not empty" if path.is_dir() else "not a folder"
        raise VgrpoError(f"{option} {path}: {what}, and nothing is overwritten; choose another")
    return check_place(path, option)


def next_free(folder: Path, name: str, suffix: str = "") -> Path:
    """Return the first of NAME, NAME-2, NAME-3, ... that is not in a folder."""
    number = 1
    while (path := folder / f"{name}{f'-{number}' if number > 1 else ''}{suffix}").exists():
        number += 1
    return path
