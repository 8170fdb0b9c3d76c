"""From a recipe to a finished run folder: start or resume, iterate, evaluate, save, stop on request."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from . import checkpoint
from .copies import AVERAGE
from .errors import Diverged, RankError, RunError
from .events import Iterated, Listener, Metrics, Saved, Started
from .folder import Folder, best, evaluated
from .ranks import Ranks
from .recipe import Recipe, moments
from .trainer import Trainer

Stop = Callable[[], bool]


class Stopped(RunError):
    """The run was asked to stop and can be resumed."""


def run(
    recipe: Recipe, path: Path, listener: Listener, *, resume: bool = False, stop: Stop = lambda: False, ranks: Ranks | None = None
) -> dict[str, Any]:
    """Train what a recipe declares in the folder `path` and return its summary; with `ranks`, called on each of them.

    `stop` is asked after every iteration. Raises Stopped when it said so, and RunError when the run could not go on; in both
    cases the folder holds a checkpoint to resume from. The listeners of all ranks hear the same.
    """
    ranks = ranks or Ranks()
    folder = Folder(path)
    saved = folder.latest() if resume else None
    trainer = Trainer(recipe, pick_device(recipe.run.device), listener, ranks)
    _prepare(trainer, folder, saved)
    trainer.tell(Started(path, trainer.done, recipe.run.iterations))
    try:
        _loop(trainer, folder, stop)
    except Stopped:
        raise
    except Exception as error:
        raise _failed(error, trainer, folder) from error
    return _finish(trainer, folder)


def pick_device(name: str) -> torch.device:
    """Return the named device; "auto" is the CUDA device of this process where there is one."""
    if name != "auto":
        return torch.device(name)
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else torch.device("cpu")


def _prepare(trainer: Trainer, folder: Folder, saved: Path | None) -> None:
    """Make the folder of a new run, or go back to the checkpoint `saved`."""
    if saved is not None:
        trainer.restore(checkpoint.load(saved, trainer.policy.trainable()))
    if trainer.ranks.main and saved is not None:
        folder.keep(trainer.recipe)
        folder.rewind(trainer.done)
    elif trainer.ranks.main:
        backbone = {**trainer.describe(), "ranks": trainer.ranks.count}
        folder.create(trainer.recipe, {**trainer.recipe.made, "recipe": trainer.recipe.table, "backbone": backbone})
    trainer.ranks.wait()


def _finish(trainer: Trainer, folder: Folder) -> dict[str, Any]:
    """Export the weights, averaged where the recipe says so, and summarise."""
    with trainer.copies.inside(AVERAGE), trainer.ranks.whole(trainer.policy.module):
        if trainer.ranks.main:
            trainer.policy.export(folder.path / "model")
    weights = {entry.label: entry.weight_at(trainer.done) * entry.scale for entry in trainer.recipe.rewards}
    return trainer.ranks.told(folder.summarise(weights) if trainer.ranks.main else {})


def _loop(trainer: Trainer, folder: Folder, stop: Stop) -> None:
    recipe, ranks, first = trainer.recipe, trainer.ranks, trainer.done + 1
    if ranks.told(len(folder.lines())) <= trainer.done:  # a new run, or one that failed in an evaluation
        _record(trainer, folder)
    while trainer.done < recipe.run.iterations:
        trainer.train()
        if trainer.done == first:
            ranks.check_same(trainer.policy.state())
        _record(trainer, folder)
        stopping = trainer.done < recipe.run.iterations and ranks.any(stop())
        if stopping or trainer.done in moments(recipe.checkpoint.every, recipe.run.iterations):
            _save(trainer, folder)
        if stopping:
            raise Stopped(f"stopped after iteration {trainer.done} of {recipe.run.iterations}")


def _record(trainer: Trainer, folder: Folder) -> None:
    """Evaluate where it is due and write the line of the iteration."""
    line, recipe = trainer.line, trainer.recipe
    if trainer.done in {0, *moments(recipe.eval.every, recipe.run.iterations)}:
        line = line | trainer.evaluate()
        if recipe.checkpoint.best:
            _keep_best(trainer, folder, line)
    if trainer.ranks.main:
        folder.append(line)
    if trainer.done:
        trainer.tell(Iterated(line))


def _keep_best(trainer: Trainer, folder: Folder, line: Metrics) -> None:
    """Save where the reward that chooses the best checkpoint has never judged held-out images better."""
    label = trainer.recipe.checkpoint.best
    weight = next((e.weight_at(trainer.done) * e.scale for e in trainer.recipe.rewards if e.label == label), 1.0)
    *before, value = [evaluated(each).get(label or "") for each in (*folder.lines(), line)]
    if trainer.ranks.told(value is not None and value not in before and value == best([*before, value], weight)):
        checkpoint.save(folder.path / "best", trainer.state(), keep=1, ranks=trainer.ranks)


def _save(trainer: Trainer, folder: Folder) -> None:
    trainer.ranks.check_same(trainer.policy.state())
    path = checkpoint.save(folder.checkpoints, trainer.state(), keep=trainer.recipe.checkpoint.keep, ranks=trainer.ranks)
    trainer.tell(Saved(trainer.done, path))


def _failed(error: Exception, trainer: Trainer, folder: Folder) -> Exception:
    """Save what is whole and say what is kept; what is no mistake of a user keeps its traceback."""
    ranks = trainer.ranks
    alone = ranks.sharded or isinstance(error, RankError)  # sharded ranks fail one by one: the others are waiting elsewhere
    common = ranks.count == 1 or ranks.agreed or (isinstance(error, RunError) and not alone)
    if not trainer.moved and common and not isinstance(error, Diverged):  # to save takes every rank
        checkpoint.save(folder.checkpoints, trainer.state(), keep=trainer.recipe.checkpoint.keep, ranks=ranks)
    kept = checkpoint.complete(folder.checkpoints)
    where = f"failed after iteration {trainer.done}; " + (f"iteration {int(kept[-1].name)} is kept" if kept else "nothing is kept")
    if not isinstance(error, RunError):
        error.add_note(where)
        return error
    return type(error)(f"{error}\n  {where}")
