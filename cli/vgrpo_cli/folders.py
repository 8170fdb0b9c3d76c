"""Which folder a run goes to, and which one `--resume` goes on with."""

from __future__ import annotations

import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgrpo_core import VgrpoError
from vgrpo_core.recipe import Recipe
from vgrpo_recipe.tables import dump, flat

RUNS = Path("runs")
FREE = re.compile(r"run\.iterations|checkpoint\..*|eval\..*")
"""Keys that may change when a run is resumed."""


@dataclass(frozen=True)
class Place:
    """The folder of a new run, made at once so that no other run takes it; `made` are the folders that were not there."""

    path: Path
    made: tuple[Path, ...]

    @classmethod
    def make(cls, path: Path) -> Place:
        """Make a folder; FileExistsError where there is one already."""
        made = tuple(folder for folder in (path, *path.parents) if not folder.exists())
        path.mkdir(parents=True)
        return cls(path, made)

    def give_up(self) -> None:
        """Leave nothing behind of a run that has not started."""
        for file in self.path.iterdir():
            file.unlink()
        for folder in self.made:
            with suppress(OSError):  # it is not empty: someone else has put something there
                folder.rmdir()


def new(name: str, out: Path | None) -> Place:
    """Take `out`, which has to be empty or not there yet, or the next free of `runs/NAME`, `runs/NAME-2`, ..."""
    try:
        return _named(name) if out is None else _at(out)
    except OSError as error:
        raise VgrpoError(f"{error.filename}: the run's folder can't be made: {error.strerror}") from error


def _named(name: str) -> Place:
    number = 1
    while True:
        try:
            return Place.make(RUNS / (name if number == 1 else f"{name}-{number}"))
        except FileExistsError:
            number += 1


def _at(out: Path) -> Place:
    if not out.exists():
        return Place.make(out)
    if not out.is_dir():
        raise VgrpoError(f"--out {out}: not a folder; choose another")
    if any(out.iterdir()):
        raise VgrpoError(f"--out {out}: the folder is not empty; choose another, or add --resume to go on with the run in it")
    return Place(out, ())


def check_place(path: Path, option: str) -> Path:
    """Check, before the work, that something can be written in a folder, or in the nearest one above it that is there."""
    above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    try:
        tempfile.TemporaryFile(dir=above).close()
    except OSError as error:
        raise VgrpoError(f"{path}: can't be written there: {error.strerror}; name another place with {option}") from error
    return path


def saved(name: str, out: Path | None) -> Path:
    """Return `out`, or the folder of a run of that name that was saved last; one without a checkpoint is a VgrpoError."""
    if out is not None:
        if not checkpoints(out):
            raise VgrpoError(f"--resume: {out} holds no checkpoint to go on from; start a new run without --resume")
        return out
    folders = [path for path in RUNS.glob("*") if re.fullmatch(rf"{re.escape(name)}(-\d+)?", path.name) and checkpoints(path)]
    if not folders:
        what = f'--resume: no run "{name}" with a checkpoint in {RUNS.resolve()}'
        raise VgrpoError(f"{what}; name its folder with --out, or start a new run without --resume")
    return max(folders, key=lambda path: checkpoints(path)[-1].stat().st_mtime_ns)


def checkpoints(path: Path) -> list[Path]:
    """List the finished checkpoints of a run folder, oldest first."""
    from vgrpo_core import checkpoint, folder

    return checkpoint.complete(folder.Folder(path).checkpoints)


def check_same(given: Recipe, kept: Recipe) -> None:
    """Refuse to resume with another recipe than the run was started with; the VgrpoError names what differs."""
    here, there = dict(flat(given.table)), dict(flat(kept.table))
    keys = [key for key in {**there, **here} if here.get(key) != there.get(key) and not FREE.fullmatch(key)]
    if keys:
        lines = [f"{key} was {shown(there.get(key))}, now {shown(here.get(key))}" for key in keys]
        may = "run.iterations, checkpoint.* and eval.* may change, optimizer.lr with --set"
        fix = f"Resume with the values it was started with ({may}), or start anew."
        raise VgrpoError("\n  ".join([f"--resume: {kept.path.parent} was started with another recipe", *lines, fix]))


def shown(value: Any) -> str:
    """Write a value of a recipe for people."""
    return "not set" if value is None else dump(value)
