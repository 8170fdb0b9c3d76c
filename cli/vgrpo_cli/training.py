"""`vgrpo run`: choose the folder, train, show it, and say what to do next."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from vgrpo_core.errors import Diverged
from vgrpo_core.events import Evaluated, Event, Started, Warned
from vgrpo_core.recipe import Recipe
from vgrpo_recipe import load
from vgrpo_recipe.layout import WATCHED
from vgrpo_recipe.plan import Plan, unbegun

from . import folders, pictures
from .launch import check_launcher, command, processes, rank
from .listing import columns
from .planned import weight
from .screen import Screen, number
from .shipped import find
from .signals import Interrupts
from .typed import device

if TYPE_CHECKING:
    from vgrpo_core.ranks import Ranks

PATIENCE = 2.0  # seconds


@dataclass(frozen=True)
class Asked:
    """What was typed."""

    recipe: str
    overrides: list[str]
    out: Path | None
    resume: bool

    def setting(self, *keys: str) -> list[str]:
        """Return the overrides of some keys."""
        return [item for item in self.overrides if item.partition("=")[0].strip() in keys]

    def again(self, folder: Path, changes: Mapping[str, float] | None = None) -> str:
        """Return the command that goes on with the run in `folder`, with other values of the keys in `changes`."""
        changes = changes or {}
        sets = [item for item in self.overrides if item not in self.setting(*changes)]
        sets += [f"{key}={value!r}" for key, value in changes.items()]
        words = [*command(), "run", self.recipe, "--resume", "--out", str(folder)]
        return shlex.join(words + [word for item in sets for word in ("--set", item)])


@dataclass(frozen=True)
class Job:
    """A run to do in the folder `path`; `place` is that folder where it is a new one."""

    asked: Asked
    recipe: Recipe
    path: Path
    place: folders.Place | None = None

    @classmethod
    def new(cls, asked: Asked) -> Job:
        """Take a folder for a new run, once the recipe is known to be sound."""
        recipe = load(find(asked.recipe), asked.overrides)
        Plan.of(recipe, processes()).ready()
        _check_device(recipe)
        if rank() > 0:
            return cls(asked, recipe, Path())  # the main rank will tell
        place = folders.new(recipe.run.name, asked.out)
        return cls(asked, recipe, place.path, place)

    @classmethod
    def resumed(cls, asked: Asked) -> Job:
        """Find the run to go on with; what is resumed is the recipe that it kept, with the overrides."""
        given = load(find(asked.recipe), asked.overrides, track=False)  # trackers may change
        path = folders.saved(given.run.name, asked.out)
        folders.check_same(given, load(path / "recipe.toml", asked.setting("optimizer.lr"), track=False))
        recipe = unbegun(load(path / "recipe.toml", asked.overrides))  # all that it learned is in its checkpoint
        Plan.of(recipe, processes())
        _check_device(recipe)
        return cls(asked, recipe, path)

    def give_up(self) -> None:
        """Leave nothing behind of a new run that has not started."""
        if self.place:
            self.place.give_up()

    def start(self) -> dict[str, float | None]:
        """Return how a resumed run was judged at iteration 0, by label."""
        if not self.asked.resume:
            return {}
        from vgrpo_core.folder import Folder, evaluated

        return evaluated(next(iter(Folder(self.path).lines()), {}))

    def mended(self, error: Exception) -> str:
        """Return the command that goes on after an error; at half the rate after weights that have diverged."""
        slower = {"optimizer.lr": self.recipe.optimizer.lr / 2} if isinstance(error, Diverged) else {}
        return self.asked.again(self.path, slower)

    def longer(self, done: int) -> str:
        """Return the command that trains for as many iterations again."""
        return self.asked.again(self.path, {"run.iterations": 2 * done})

    def finished(self) -> int:
        """Return how many iterations a resumed run has done if there is nothing left to do, else 0."""
        summary = self.path / "summary.json"
        if not self.asked.resume or not summary.is_file():
            return 0
        done = int(folders.checkpoints(self.path)[-1].name)
        summarised = json.loads(summary.read_text(encoding="utf-8"))["iterations"]
        return done if min(done, summarised) >= self.recipe.run.iterations else 0


def train(asked: Asked) -> int:
    """Do what was asked and return the exit code."""
    settle()
    check_launcher(asked.recipe)
    with Interrupts(PATIENCE if processes() > 1 else 0) as interrupts:
        job = Job.resumed(asked) if asked.resume else Job.new(asked)
        interrupts.give_up = job.give_up
        try:
            return _train(job, interrupts)
        except Exception as error:
            if interrupts.loading:
                job.give_up()
            elif folders.checkpoints(job.path):
                error.add_note(f"  go on with: {job.mended(error)}")
            raise


def verify(recipe: Recipe) -> list[str]:
    """Load the backbone and hold it against the model itself."""
    settle()
    policy = recipe.backbone.load(device(recipe.run.device, f"run.device {recipe.run.device}"))
    return recipe.backbone.verify(policy) or [f'backbone "{recipe.backbone.name}" has no checks of its own']


def _check_device(recipe: Recipe) -> None:
    if recipe.run.device not in ("auto", "cpu"):  # to ask takes torch, which these two can do without
        device(recipe.run.device, f"run.device {recipe.run.device}")


def settle() -> None:
    """Set what libraries read from the environment when they are imported."""
    if cores := granted_cores(Path("/sys/fs/cgroup/cpu.max")):
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # two pools of threads that spin slow each other down on few cores
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def granted_cores(limit: Path) -> int:
    """Return how many cores a container may use, or 0 without a limit.

    Libraries count the machine's cores: in a container with 2 of 64 they would start 64 threads, which wait for each other.
    """
    try:
        quota, period = limit.read_text().split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no control group, or "max"
        return 0


def _train(job: Job, interrupts: Interrupts) -> int:
    from vgrpo_core.ranks import Ranks

    with Ranks.join() as ranks:
        job = replace(job, path=ranks.told(job.path))
        console = Console(highlight=False, quiet=not ranks.main)
        rewards = {entry.label: entry.weight_at(0) * entry.scale for entry in job.recipe.rewards}
        screen = Screen(console, rewards, job.recipe.run.iterations, job.start())
        if done := job.finished():
            screen.say(f"{job.path} is finished: all {done} iterations are done; go on with: {job.longer(done)}")
            return 0
        for line in _introduction(job):
            screen.say(line)
        return _shown(job, interrupts, screen, ranks)


def _shown(job: Job, interrupts: Interrupts, screen: Screen, ranks: Ranks) -> int:
    """Run, and let the screen, the pictures, the report and the trackers of the main rank follow."""
    from vgrpo_core.run import Stopped, run
    from vgrpo_report.live import Live
    from vgrpo_track import Tracks

    report, tracks = Live(job.path, screen), Tracks(job.recipe, job.path, screen)

    def listen(event: Event) -> None:
        if isinstance(event, Started):
            interrupts.loading = False
            interrupts.say = screen.interrupted if ranks.main else interrupts.say
        if isinstance(event, Evaluated) and ranks.main:
            pictures.save(event, job.path)
        if ranks.main:
            report(event)
            tracks(event)
        screen(event)  # last: from here on an iteration is told as done, and a signal stops after it

    try:
        with screen, tracks:
            stop = lambda: interrupts.received > 0  # noqa: E731
            summary = run(job.recipe, job.path, listen, resume=job.asked.resume, stop=stop, ranks=ranks)
    except Stopped as stopped:
        if ranks.main:
            report.write()
        screen.say(f"{stopped}; go on with: {job.asked.again(job.path)}")
        return interrupts.exit_code
    if ranks.main:
        screen.summary(summary)
        screen.say(_next(job, screen, summary))
    return 0


def _introduction(job: Job) -> list[str]:
    recipe, batch = job.recipe, job.recipe.batch
    over = f", on {processes()} ranks" if processes() > 1 else ""
    rewards = [f"{entry.label} (weight {weight(entry)})" for entry in recipe.rewards]
    rewards += [f"{entry.label} (watched only)" for entry in recipe.eval.rewards if entry.label not in WATCHED]
    rows = [
        ("recipe", str(recipe.path)),
        ("folder", f"{job.path}{', resumed' if job.asked.resume else ''}"),
        ("model", recipe.backbone.describe()),
        ("rewards", ", ".join(rewards)),
        ("run", f"{recipe.run.iterations} iterations of {batch.prompts} prompts x {batch.group} images{over}"),
    ]
    if trackers := recipe.table.get("track", {}).get("with"):
        rows += [("trackers", ", ".join(trackers))]
    return [*columns(rows), "loading models and rewards; this takes some seconds"]


def _next(job: Job, screen: Screen, summary: Mapping[str, Any]) -> str:
    """Draw the picture of before and after, and say where things are and how to go on."""
    from vgrpo_report.commands import NAME

    start, final, done = summary["start"], summary["final"], summary["iterations"]
    changes = [f"{label} {number(start[label])} -> {number(final.get(label))}" for label in start if screen.shows(label)]
    look = job.path / "samples"
    try:
        look = pictures.before_after(job.path, done, f"{job.recipe.run.name}: {', '.join(changes)}")
    except (OSError, ValueError) as error:
        screen(Warned(f"no before-after.png: {error}"))
    report = f" and {job.path / NAME}" if (job.path / NAME).is_file() else ""
    where = f"look at {look}{report}; the weights are in {job.path / 'model'}"
    return f"{job.path}: {where}; go on with: {job.longer(done)}"
