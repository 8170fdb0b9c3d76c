"""From a recipe to a finished run folder: start or resume, iterate, evaluate, save, stop on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import checkpoint
from .errors import RunError
from .events import Iterated, Listener, Saved, Started
from .folder import Folder, manifest
from .plan import moments
from .recipe import Recipe
from .trainer import Trainer

Stop = Callable[[], bool]


class Stopped(RunError):
    """The run was asked to stop and can be resumed."""


def run(recipe: Recipe, path: Path, listener: Listener, *, resume: bool = False, stop: Stop = lambda: False) -> dict[str, Any]:
    """Train what a recipe declares in the folder `path` and return its summary.

    `stop` is asked after every iteration. Raises Stopped when it said so, and RunError when the run could not go on; in both
    cases the folder holds a checkpoint to resume from.
    """
    folder = Folder(path)
    saved = folder.latest() if resume else None
    trainer = Trainer(recipe, pick_device(recipe.run.device), listener)
    if saved is not None:
        trainer.restore(saved)
        folder.keep(recipe)
        folder.rewind(trainer.done)
    else:
        folder.create(recipe, manifest(recipe, trainer.describe()))
    listener(Started(path, trainer.done, recipe.run.iterations))
    try:
        _loop(trainer, folder, listener, stop)
    except Stopped:
        raise
    except Exception as error:
        raise _failed(error, trainer, folder) from error
    trainer.policy.export(path / "model")
    return folder.summarise({entry.label: entry.weight * entry.scale for entry in recipe.rewards})


def pick_device(name: str) -> torch.device:
    """Return the named device; "auto" is CUDA where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else torch.device(name)


def _loop(trainer: Trainer, folder: Folder, listener: Listener, stop: Stop) -> None:
    recipe = trainer.recipe
    if len(folder.lines()) <= trainer.done:  # a new run, or one that failed in an evaluation
        _record(trainer, folder, listener)
    while trainer.done < recipe.run.iterations:
        trainer.train()
        _record(trainer, folder, listener)
        stopping = trainer.done < recipe.run.iterations and stop()
        if stopping or trainer.done in moments(recipe.checkpoint.every, recipe.run.iterations):
            _save(trainer, folder, listener)
        if stopping:
            raise Stopped(f"stopped after iteration {trainer.done} of {recipe.run.iterations}")


def _record(trainer: Trainer, folder: Folder, listener: Listener) -> None:
    """Evaluate where it is due and write the line of the iteration."""
    line, recipe = trainer.line, trainer.recipe
    if trainer.done in {0, *moments(recipe.eval.every, recipe.run.iterations)}:
        line = line | trainer.evaluate()
    folder.append(line)
    if trainer.done:
        listener(Iterated(line))


def _save(trainer: Trainer, folder: Folder, listener: Listener) -> None:
    path = checkpoint.save(folder.checkpoints, trainer.state(), keep=trainer.recipe.checkpoint.keep)
    listener(Saved(trainer.done, path))


def _failed(error: Exception, trainer: Trainer, folder: Folder) -> Exception:
    """Save what is whole and say what is kept; what is no mistake of a user keeps its traceback."""
    if not trainer.moved:
        checkpoint.save(folder.checkpoints, trainer.state(), keep=trainer.recipe.checkpoint.keep)
    kept = checkpoint.complete(folder.checkpoints)
    where = f"failed after iteration {trainer.done}; " + (f"iteration {int(kept[-1].name)} is kept" if kept else "nothing is kept")
    if not isinstance(error, RunError):
        error.add_note(where)
        return error
    return RunError(f"{error}\n  {where}")
