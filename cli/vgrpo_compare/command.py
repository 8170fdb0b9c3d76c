"""`vgrpo compare`: run what is not over yet, one run after the other, and write what came of it."""

from __future__ import annotations

import gc
import json
import os
import shlex
import shutil
import sys

from rich.console import Console
from rich.text import Text

from vgrpo_cli import folders, pictures
from vgrpo_cli.launch import processes
from vgrpo_cli.screen import number
from vgrpo_cli.signals import Interrupts
from vgrpo_cli.training import settle
from vgrpo_core import VgrpoError
from vgrpo_core.errors import Diverged, NoSignal, reason
from vgrpo_core.events import Evaluated, Event, Iterated, Metrics, Started, Warned
from vgrpo_core.recipe import Recipe

from . import plot, results, table
from .asked import Asked, Comparison, read
from .entries import Entry
from .jobs import ENDED, Done, Job, check_same, lines, points
from .results import over, tried


def compare(asked: Asked) -> int:
    """Do what was asked and return the exit code."""
    settle()
    if processes() > 1:
        raise VgrpoError("vgrpo compare trains in one process; start several with different --only to use more devices")
    with Interrupts() as interrupts:
        comparison = read(asked)
        plot.check()
        return _Runner(comparison, interrupts).run()


class _Runner:
    def __init__(self, comparison: Comparison, interrupts: Interrupts) -> None:
        self.comparison, self.interrupts, self.common = comparison, interrupts, comparison.common
        self.console = Console(highlight=False)
        each = len(comparison.seeds) + (len(comparison.sweep.values) if comparison.sweep else 0)
        self.at, self.total = 0, each * len(comparison.only)

    def run(self) -> int:
        from vgrpo_core.run import Stopped

        again = shlex.join(["vgrpo", *sys.argv[1:]])
        self.interrupts.loading, self.interrupts.say = False, self.interrupted
        try:
            for entry in self.comparison.only:
                self.entry(entry)
        except Stopped as stopped:
            results.write(self.comparison, pictures=True)
            self.say(f"{stopped}; go on with: {again}")
            return self.interrupts.exit_code
        except Exception as error:
            error.add_note(f"  go on with: {again}")
            raise
        found, out = results.write(self.comparison, pictures=True), self.comparison.out
        for line in ["", *table.terminal(found), "", f"{out}: look at {out / 'compare.png'} and {out / 'compare.md'}"]:
            self.say(line)
        return 0

    def entry(self, entry: Entry) -> None:
        """Run an entry's sweep, and then its seeds with the best value."""
        folder, best = self.comparison.out / entry.label, None
        with results.alone(folder, wait=False) as held:
            if not held:
                raise VgrpoError(f"{folder}: another process runs this entry; choose others with --only")
            for job in self.comparison.swept(entry):
                self.job(job)
            if self.comparison.sweep:
                best = tried(self.comparison, entry).best
                self.say(f"{entry.label}: {f'best {self.comparison.sweep.key}={best}' if best else 'no value of the sweep lasted'}")
            for job in self.comparison.seeded(entry, best) if best or not self.comparison.sweep else ():
                self.job(job)

    def job(self, job: Job) -> None:
        """Do one run, go on with it, or leave it where it is over."""
        from vgrpo_core.run import Stopped

        if self.interrupts.received:
            raise Stopped("stopped between two runs")
        self.at += 1
        recipe = job.recipe(self.common) or self.timed(job)
        check_same(recipe, job.folder, self.common.registry)
        name = f"[{self.at}/{self.total}] {job.folder.relative_to(self.comparison.out)}"
        before = over(self.comparison, job)
        self.say(f"{name}: {_outcome(before) if before else f'{recipe.run.iterations} iterations'}")
        if not before:
            self.train(job, recipe)
            results.write(self.comparison, pictures=False)

    def timed(self, job: Job) -> Recipe:
        """Time an iteration and return the recipe of as many as the budget's seconds allow."""
        timing = job.timing(self.common)
        shutil.rmtree(timing.folder, ignore_errors=True)  # one that was stopped, or another recipe's of the same cost
        timed = timing.recipe(self.common)
        assert timed
        self.say(f"{timing.folder.relative_to(self.comparison.out)}: timing {timed.run.iterations} iterations")
        self.train(timing, timed)
        recipe = job.recipe(self.common)
        if recipe is None:
            raise VgrpoError(f"{timing.folder}: the iterations could not be timed; give a --budget instead of --seconds")
        return recipe

    def train(self, job: Job, recipe: Recipe) -> None:
        from vgrpo_core.run import Stopped, run

        listen, stop = _Listener(self, job), lambda: self.interrupts.received > 0
        try:
            run(recipe, job.folder, listen, resume=bool(folders.checkpoints(job.folder)), stop=stop)
        except Stopped:
            raise
        except Exception as error:
            done, broken = lines(job.folder), isinstance(error, Diverged)
            if not done or not (broken or isinstance(error, NoSignal)):
                raise
            why = f"{'broke' if broken else 'ended'} in iteration {int(done[-1]['iteration'] or 0) + 1}: {reason(error)}"
            (job.folder / ENDED).write_text(json.dumps({"why": why, "broken": broken}) + "\n", encoding="utf-8")
            self.say(f"  {why}", "yellow")
        finally:
            _let_go()

    def say(self, line: str, style: str = "") -> None:
        self.console.print(Text(line, style), soft_wrap=True)

    def interrupted(self) -> None:
        """Say what a signal leads to, past all buffers and locks."""
        os.write(self.console.file.fileno(), b"finishing the iteration, then saving; press again to quit at once\n")


class _Listener:
    """Print one line an evaluation, and keep its pictures."""

    def __init__(self, runner: _Runner, job: Job) -> None:
        self.runner, self.job, self.iterations = runner, job, 0

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self.iterations = event.iterations
                self._stop_early(event.iteration)
            case Evaluated():
                pictures.save(event, self.job.folder)
                if event.iteration == 0:
                    self._evaluated({"iteration": 0, **{f"eval/{label}/mean": mean for label, mean in event.scores.items()}})
                    self._stop_early(0)
            case Iterated() if any(key.startswith("eval/") for key in event.metrics):
                self._evaluated(event.metrics)
            case Warned():
                self.runner.say(f"  warning: {event.message}", "yellow")

    def _evaluated(self, metrics: Metrics) -> None:
        rewards = self.runner.common.base.rewards
        line = {"evaluations": 0, "backwards": 0, "seconds": 0.0, **metrics}
        for point in points([line], rewards, self.job.budget.count):
            means = [f"{entry.label} {number(point.means.get(entry.label))}" for entry in rewards]
            where = f"iteration {point.iteration}/{self.iterations}"
            parts = [where, f"score {number(point.score)}", *means, f"cost {point.cost:,.0f}", f"{point.seconds:.0f} s"]
            self.runner.say(f"  {'  '.join(parts)}")

    def _stop_early(self, iteration: int) -> None:
        from vgrpo_core.run import Stopped

        if self.runner.interrupts.received:
            raise Stopped(f"stopped before iteration {iteration + 1}")


def _outcome(run: Done) -> str:
    return f"done before, final score {number(run.final)}" if run.ended is None else f"done before, {run.ended}"


def _let_go() -> None:
    """Free the memory of a model before the next one is loaded."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
