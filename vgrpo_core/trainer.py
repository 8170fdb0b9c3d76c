"""The training run. `Trainer.iterate` is one iteration, readable top to bottom."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from . import metrics
from .advantages import Advantages, combine
from .checkpoint import Checkpoint
from .errors import RunError
from .events import Evaluated, Listener, Metrics, Warned
from .keys import prompt_indices, seed
from .optimizer import Optimizer
from .plan import load_prompts
from .plugin import Update
from .recipe import Recipe
from .rollout import Collected, Rollout, collect, draws
from .scoring import Judge, load

IDLE_LIMIT = 5  # iterations without any advantage before the run stops
SHOWN = 64  # held-out images kept for pictures


class Trainer:
    """Compose what a recipe declares, and train it. Loading writes nothing."""

    def __init__(self, recipe: Recipe, device: torch.device, listener: Listener) -> None:
        self.recipe, self.tell = recipe, listener
        self.prompts, self.held_out = load_prompts(recipe.prompts), load_prompts(recipe.eval.prompts)
        self.judges = [load(entry, device) for entry in recipe.rewards]
        self.monitors = [load(entry, device, monitor=True) for entry in recipe.eval.rewards]
        torch.manual_seed(seed(recipe.run.seed, "start-up"))  # for fresh adapters; nothing else draws from the global generator
        self.policy = recipe.backbone.load(device)
        self.optimizer = Optimizer(recipe, self.policy.trainable())
        self.done, self.evaluations, self.seconds, self.idle = 0, 0, 0.0, 0
        self.line: Metrics = {"iteration": 0, "seconds": 0.0, "evaluations": 0}
        self.warned = False
        self.moved = False  # whether the weights are no longer those of iteration `done`

    def train(self) -> Metrics:
        """Do the next iteration and return its line of metrics.jsonl."""
        start, before = time.perf_counter(), self.policy.evaluations
        line = self.iterate(self.done + 1)
        self.done, self.moved = self.done + 1, False
        self.seconds += time.perf_counter() - start
        self.evaluations += self.policy.evaluations - before
        self.line = {"iteration": self.done, "seconds": round(self.seconds, 3), "evaluations": self.evaluations, **line}
        return self.line

    def iterate(self, iteration: int) -> Metrics:
        """Draw, judge, compare in groups, take the gradient steps."""
        recipe, batch = self.recipe, self.recipe.batch
        chosen = prompt_indices(recipe.run.seed, iteration, batch.prompts, len(self.prompts))
        rows = draws(recipe.run.seed, "noise", [self.prompts[index] for index in chosen], batch.group, iteration)
        drawn = collect(self.policy, recipe.sampler, self.judges, rows, micro=batch.micro)
        advantages, line = self.compare(drawn)
        values, valid = advantages.values.flatten().float(), advantages.valid.flatten()
        rollout = Rollout(recipe.run.seed, iteration, batch.group, rows.prompts, drawn.latents, values, valid)
        samples = recipe.objective.samples_in(batch.micro)
        update = recipe.objective.start(self.policy, rollout, samples)
        for step in range(recipe.objective.steps):
            line |= self.step(update, step, iteration, samples)
        return line

    def compare(self, drawn: Collected) -> tuple[Advantages, Metrics]:
        """Turn scores into advantages; stop when nothing has had one for five iterations."""
        recipe = self.recipe
        scores = metrics.scaled(drawn.scores, recipe.rewards)
        grouped = {label: values.view(-1, recipe.batch.group) for label, values in scores.items()}
        weights = {entry.label: entry.weight for entry in recipe.rewards}
        advantages = combine(grouped, weights, use=recipe.combine.use, scale=recipe.combine.scale)
        line = metrics.of_scores(drawn.scores, prefix="reward") | metrics.of_scaled(scores, recipe.rewards)
        line |= metrics.of_advantages(advantages)
        self.idle = 0 if bool(advantages.values.any()) else self.idle + 1
        if advantages.zero_std_fraction > 0.5 and not self.warned:
            self.warned = True
            share = f"{advantages.zero_std_fraction:.0%}"
            self.tell(Warned(f"in {share} of the groups all rewards are equal: they teach nothing; raise batch.group"))
        if self.idle >= IDLE_LIMIT:
            raise RunError(f"every advantage was 0 in {IDLE_LIMIT} iterations: all rewards of a group are equal ({_means(line)})")
        return advantages, line

    def step(self, update: Update, step: int, iteration: int, samples: int) -> Metrics:
        """Take one gradient step in micro-batches of `samples`; the gradient does not depend on their size."""
        rows = update.rows(step)
        if not len(rows):  # no sample has an advantage, so there is no gradient
            return {}
        parts: list[dict[str, Tensor]] = []
        for part in torch.split(rows, samples):
            loss, values = update.loss(part, step)
            loss.backward()  # type: ignore[no-untyped-call]
            parts.append(values)
        self.moved = True
        size, group = self.recipe.batch.prompts * self.recipe.batch.group, self.recipe.batch.group
        return self.optimizer.step(iteration) | metrics.of_update(parts, rows, size, group)

    def evaluate(self) -> Metrics:
        """Draw the held-out prompts with their fixed noise and judge them; not counted in `evaluations` and `seconds`."""
        options = self.recipe.eval
        rows = draws(options.seed, "eval", self.held_out, options.samples)
        judges: list[Judge] = [*self.judges, *self.monitors]
        drawn = collect(self.policy, options.sampler, judges, rows, micro=self.recipe.batch.micro, keep=SHOWN)
        line = metrics.of_scores(drawn.scores, prefix="eval")
        for judge in self.monitors:
            for failure in judge.failures:
                self.tell(Warned(f"{judge.source} left a gap: {failure}"))
            judge.failures.clear()
        means = {judge.label: line[f"eval/{judge.label}/mean"] for judge in judges}
        self.tell(Evaluated(self.done, means, rows.prompts[: len(drawn.images)], drawn.images))
        return line

    def describe(self) -> dict[str, Any]:
        """Say for the manifest what was loaded, and the times [steps + 1] that the sampler visits."""
        schedule = self.policy.schedule(self.recipe.sampler.steps)
        size = sum(parameter.numel() for parameter in self.policy.trainable().values())
        return {"what": self.recipe.backbone.describe(), "trainable": size, "times": schedule.times.tolist()}

    def state(self) -> Checkpoint:
        """Return everything that the next iteration depends on."""
        state = {"iteration": self.done, "evaluations": self.evaluations, "seconds": self.seconds, "line": self.line}
        counts = {"idle": self.idle, "refused": self.optimizer.refused}
        return Checkpoint(self.policy.state(), self.optimizer.state(), state | counts)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to what `state` returned."""
        self.policy.restore(checkpoint.weights)
        self.optimizer.restore(checkpoint.optimizer)
        state = checkpoint.state
        self.done, self.evaluations, self.seconds = state["iteration"], state["evaluations"], state["seconds"]
        self.line, self.idle, self.optimizer.refused = state["line"], state["idle"], state["refused"]


def _means(line: Metrics) -> str:
    return ", ".join(f"{key} {value}" for key, value in line.items() if key.endswith("/mean"))
